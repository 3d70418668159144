"""A local session where nothing can be forked: ipyparallel's own controller and engines."""

from __future__ import annotations

import concurrent.futures
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import ipyparallel
from IPython.core.profiledir import ProfileDir
from traitlets.config import Config

from ddp_magic.core.processend import ProcessEnd
from ddp_magic.core.ranks import named
from ddp_magic.errors import StartError, StateError
from ddp_magic.kernel.client import StreamingClient
from ddp_magic.kernel.cluster import Events
from ddp_magic.kernel.processes import end_processes
from ddp_magic.kernel.reaper import Reaper

_REGISTRATION_TIMEOUT_S = 60
_CLUSTER_ID = "session"  # unique within its own private folder
_LOG_TAIL_LINES = 15
_CONTROLLER_ARGS = [
    # An engine counts as registered at the hub's next heartbeat: 3 s apart by default.
    "--HeartMonitor.period=100",
    # A rank's death is told by its nanny at once; silence alone must last as long as by default
    # (30 s), for a process that was suspended or swapped out is not dead.
    "--HeartMonitor.max_heartmonitor_misses=300",
    "--log-level=ERROR",
]


class StockCluster:
    """A controller and engines as ipyparallel starts them; see `Cluster`.

    Parameters
    ----------
    events
        Who is told what happens.
    """

    note = "this system cannot fork, so the ranks start with ipyparallel's own launcher: slower"

    def __init__(self, events: Events, preload: tuple[str, ...] = ()) -> None:
        self._events = events
        self.preload = preload
        self._cluster: ipyparallel.Cluster | None = None
        self._reaper: Reaper | None = None
        self._client: StreamingClient | None = None
        self._folder: Path | None = None
        self._engines: dict[int, int] = {}

    def warm(self) -> None:
        """Do nothing: all depends on the number of ranks."""

    def start(
        self, nproc: int, environment: Mapping[str, str], tell: Callable[[str], None]
    ) -> tuple[StreamingClient, dict[int, int]]:
        """Start engines; see `Cluster.start`."""
        # mkdtemp makes a folder that only this user can enter.
        self._folder = Path(tempfile.mkdtemp(prefix="ddp_magic-"))
        try:
            self._reaper = Reaper(self._folder)
            self._cluster = self._make(nproc, environment)
            self._cluster.start_cluster_sync()
            self._reaper.watch(self._roots())
            self._client = self._connect()
            self._await_engines(nproc, tell)
        except (StartError, KeyboardInterrupt):
            raise
        except Exception as error:
            tail = self._log_tail()
            raise StartError(f"The ranks did not start: {error}", context=tail) from error
        self._engines = dict(enumerate(sorted(self._client.ids)))
        self._client.on_engine_death(self._on_engine_death)
        return self._client, dict(self._engines)

    def replace(
        self, ranks: Collection[int], environment: Mapping[str, str], tell: Callable[[str], None]
    ) -> dict[int, int]:
        """Refuse: ipyparallel's launchers start all engines of a cluster together."""
        raise StateError(
            f"{named(ranks).capitalize()} cannot be replaced: this system cannot fork.",
            fix="Run `%ddp restart` to start new ones.",
        )

    def discard(self, ranks: Collection[int]) -> None:
        """Do nothing: there is nothing that `replace` has started."""

    def folder(self) -> str:
        """Return the session's folder."""
        return str(self._folder or "")

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank, by way of ipyparallel's nanny."""
        if self._client is not None:
            self._client.send_signal(number, self._engines[rank], block=False)

    def flush(self) -> None:
        """Do nothing: all that is printed comes as the ranks' own messages."""

    def end_ranks(self, grace_s: float) -> None:
        """End everything: nothing here can be used again."""
        self._end(grace_s)

    def stop(self) -> None:
        """End all processes at once and remove the folder."""
        self._end(0)

    def _end(self, grace_s: float) -> None:
        if self._client is not None:
            self._client.close(linger=0)
        if self._cluster is not None:
            end_processes(self._roots(), grace_s)
            self._cluster.stop_cluster_sync()
        if self._reaper is not None:
            self._reaper.close()
        if self._folder is not None and self._folder.exists():
            shutil.rmtree(self._folder)
        self._client = self._cluster = self._reaper = self._folder = None
        self._engines = {}

    def _on_engine_death(self, engine_id: int) -> None:
        for rank, engine in self._engines.items():
            if engine == engine_id:
                self._events.rank_ended(rank, ProcessEnd())

    def _roots(self) -> list[int]:
        """Return the processes that were started here; theirs are below them."""
        assert self._cluster is not None
        launchers = [self._cluster.controller]
        for engines in self._cluster.engines.values():
            launchers += getattr(engines, "launchers", {}).values()
        return [one.pid for one in launchers if one is not None and one.pid > 0]

    def _make(self, nproc: int, environment: Mapping[str, str]) -> ipyparallel.Cluster:
        assert self._folder is not None
        profile = ProfileDir.create_profile_dir(str(self._folder / "profile"))
        config = Config()
        config.EngineLauncher.environment = dict(environment)
        return ipyparallel.Cluster(
            n=nproc,
            engines="local",
            profile_dir=profile.location,
            cluster_id=_CLUSTER_ID,
            controller_ip="127.0.0.1",
            controller_args=_CONTROLLER_ARGS,
            delay=0,
            load_profile=False,
            shutdown_atexit=False,  # the session ends it, faster
            config=config,
            log=_silent_log(),
        )

    def _connect(self) -> StreamingClient:
        assert self._folder is not None
        profile = self._folder / "profile"
        connection = profile / "security" / f"ipcontroller-{_CLUSTER_ID}-client.json"
        return StreamingClient(str(connection), profile_dir=str(profile))

    def _await_engines(self, nproc: int, tell: Callable[[str], None]) -> None:
        assert self._client is not None
        registered = self._client.wait_for_engines(nproc, block=False, interactive=False)
        deadline = time.monotonic() + _REGISTRATION_TIMEOUT_S
        while True:
            try:
                registered.result(timeout=0.1)
                return
            except concurrent.futures.TimeoutError:
                tell(f"{len(self._client.ids)} of {nproc} ranks up")
                self._check_engines(nproc, deadline)

    def _check_engines(self, nproc: int, deadline: float) -> None:
        assert self._client is not None
        engines = self._cluster.engine_set if self._cluster else None
        launchers = getattr(engines, "launchers", {})
        ended = [index for index, one in launchers.items() if one.state == "after"]
        if ended or getattr(engines, "state", None) == "after":
            raise StartError(
                f"A rank's process ended while it started ({len(ended)} of {nproc}).",
                fix="Its last output may say why.",
                context=self._log_tail(),
            )
        if time.monotonic() > deadline:
            raise StartError(
                f"{len(self._client.ids)} of {nproc} ranks registered within"
                f" {_REGISTRATION_TIMEOUT_S} s.",
                fix="The machine may be short of memory or processors: start fewer with -n.",
                context=self._log_tail(),
            )

    def _log_tail(self) -> str:
        """Return the last lines that the engines left."""
        if self._folder is None:
            return ""
        lines: list[str] = []
        for log in sorted(self._folder.glob("profile/log/*.log")):
            lines += log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join(lines)


def _silent_log() -> logging.Logger:
    """Return a logger for ipyparallel's progress messages, which are not the user's output."""
    log = logging.getLogger("ddp_magic.cluster")
    log.setLevel(logging.CRITICAL)
    log.propagate = False
    return log
