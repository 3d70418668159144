"""The processes of a local session: ipyparallel's controller and engines, in a private folder."""

from __future__ import annotations

import concurrent.futures
import logging
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import ipyparallel
from IPython.core.profiledir import ProfileDir
from traitlets.config import Config

from ddp_magic.errors import StartError
from ddp_magic.kernel.client import StreamingClient
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


class LocalCluster:
    """A controller and ``nproc`` engines on this machine, started and ended together.

    Parameters
    ----------
    engines
        The ipyparallel launcher of the engines.
    """

    def __init__(self, engines: str = "local") -> None:
        self._engines = engines
        self._cluster: ipyparallel.Cluster | None = None
        self._reaper: Reaper | None = None
        self.client: StreamingClient | None = None
        self.folder: Path | None = None

    def start(self, nproc: int, environment: Mapping[str, str]) -> StreamingClient:
        """Start the processes and return a client to whom all engines are registered.

        Parameters
        ----------
        environment
            What the engines have in their environment besides this process's.

        Raises
        ------
        StartError
            If an engine ends or does not register in time; nothing is left running.
        """
        # mkdtemp makes a folder that only this user can enter.
        self.folder = Path(tempfile.mkdtemp(prefix="ddp_magic-"))
        try:
            self._reaper = Reaper(self.folder)
            self._cluster = self._make(nproc, environment)
            self._cluster.start_cluster_sync()
            self._reaper.watch(self._roots())
            self.client = self._connect()
            self._await_engines(nproc)
        except BaseException as error:
            tail = self._log_tail()
            self.stop()
            if isinstance(error, (StartError, KeyboardInterrupt)):
                raise
            raise StartError(f"The ranks did not start: {error}", context=tail) from error
        return self.client

    def stop(self, term_grace_s: float = 0.5) -> None:
        """End the processes and remove the folder; safe to call at any time, more than once.

        Parameters
        ----------
        term_grace_s
            How long the processes have to end by themselves.
        """
        if self.client is not None:
            self.client.close(linger=0)
        if self._cluster is not None:
            end_processes(self._roots(), term_grace_s)
            self._cluster.stop_cluster_sync()
        if self._reaper is not None:
            self._reaper.close()
        if self.folder is not None and self.folder.exists():
            shutil.rmtree(self.folder)
        self.client = self._cluster = self._reaper = self.folder = None

    def _roots(self) -> list[int]:
        """Return the processes that were started here; theirs are below them."""
        assert self._cluster is not None
        launchers = [self._cluster.controller]
        for engines in self._cluster.engines.values():
            launchers += getattr(engines, "launchers", {}).values()
        return [one.pid for one in launchers if one is not None and one.pid > 0]

    def _make(self, nproc: int, environment: Mapping[str, str]) -> ipyparallel.Cluster:
        assert self.folder is not None
        profile = ProfileDir.create_profile_dir(str(self.folder / "profile"))
        config = Config()
        config.EngineLauncher.environment = dict(environment)
        return ipyparallel.Cluster(
            n=nproc,
            engines=self._engines,
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
        assert self.folder is not None
        profile = self.folder / "profile"
        connection = profile / "security" / f"ipcontroller-{_CLUSTER_ID}-client.json"
        return StreamingClient(str(connection), profile_dir=str(profile))

    def _await_engines(self, nproc: int) -> None:
        assert self.client is not None
        registered = self.client.wait_for_engines(nproc, block=False, interactive=False)
        deadline = time.monotonic() + _REGISTRATION_TIMEOUT_S
        while True:
            try:
                registered.result(timeout=0.1)
                return
            except concurrent.futures.TimeoutError:
                self._check_engines(nproc, deadline)

    def _check_engines(self, nproc: int, deadline: float) -> None:
        assert self.client is not None
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
                f"{len(self.client.ids)} of {nproc} ranks registered within"
                f" {_REGISTRATION_TIMEOUT_S} s.",
                fix="The machine may be short of memory or processors: start fewer with -n.",
                context=self._log_tail(),
            )

    def _log_tail(self) -> str:
        """Return the last lines that the engines left."""
        if self.folder is None:
            return ""
        lines: list[str] = []
        for log in sorted(self.folder.glob("profile/log/*.log")):
            lines += log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join(lines)


def _silent_log() -> logging.Logger:
    """Return a logger for ipyparallel's progress messages, which are not the user's output."""
    log = logging.getLogger("ddp_magic.cluster")
    log.setLevel(logging.CRITICAL)
    log.propagate = False
    return log
