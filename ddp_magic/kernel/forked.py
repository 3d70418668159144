"""A local session whose processes are forked from one that has imported torch."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any

from ddp_magic.core.environment import changed_too_late
from ddp_magic.core.processend import ProcessEnd
from ddp_magic.errors import StartError
from ddp_magic.kernel.client import StreamingClient
from ddp_magic.kernel.cluster import Events
from ddp_magic.kernel.forks import ForkedProcess, ForkServer, module_path
from ddp_magic.kernel.interrupts import uninterrupted
from ddp_magic.kernel.ipythondir import ipython_environment

_CONTROLLER_TIMEOUT_S = 60.0
_RANKS_TIMEOUT_S = 120.0
_ANSWER_TIMEOUT_S = 5.0
_POLL_S = 0.2
_TAIL_BYTES = 131_072
_ENGINE_ARGS = [
    # The fork server sends signals and sees deaths; else that takes one more process a rank.
    "--IPEngine.enable_nanny=False",
    # An engine whose controller has gone is ended by the session.
    "--IPEngine.max_heartbeat_misses=0",
    "--IPEngine.timeout=60",
    "--log-level=ERROR",
]


class ForkedCluster:
    """A fork server, a controller, and engines that can be renewed.

    Parameters
    ----------
    events
        Who is told what happens.
    preload
        Modules that the fork server imports besides torch.
    server
        One that has been started already, to be used.
    """

    note = ""

    def __init__(
        self, events: Events, preload: tuple[str, ...] = (), server: ForkServer | None = None
    ) -> None:
        self._events = events
        self.preload = preload
        self._lock = threading.Lock()
        self._server: ForkServer | None = None
        self._client: StreamingClient | None = None
        self._connection = ""
        self._ranks: dict[int, ForkedProcess] = {}
        self._engines: dict[int, int] = {}
        self._ending = False
        if server is not None:
            self._take(server)

    def warm(self) -> None:
        """Start the fork server and the controller."""
        with self._lock:
            self._prepare()

    def start(
        self, nproc: int, environment: Mapping[str, str], tell: Callable[[str], None]
    ) -> tuple[StreamingClient, dict[int, int]]:
        """Start engines; see `Cluster.start`."""
        with self._lock:
            server, client = self._prepare()
            self._ending = False
            # Asked for at once: the server forks them as soon as it has imported what they need.
            self._ranks = {
                rank: self._fork_rank(server, rank, environment) for rank in range(nproc)
            }
            imported = " and ".join(["torch", *self.preload])

            def tell_import(_: int) -> None:
                tell(f"importing {imported}")

            _await([server.loaded], server, _RANKS_TIMEOUT_S, "torch was not imported", tell_import)
            self._engines = self._await_ranks(self._ranks, server, client, tell)
            self._watch(self._ranks)
            return client, dict(self._engines)

    def replace(
        self, ranks: Collection[int], environment: Mapping[str, str], tell: Callable[[str], None]
    ) -> dict[int, int]:
        """Start engines in the place of dead ranks; see `Cluster.replace`."""
        with self._lock:
            server, client = self._server, self._client
            if server is None or client is None or not server.alive:
                raise StartError("What makes ranks has gone.", fix="Run `%ddp restart`.")
            new: dict[int, ForkedProcess] = {}
            try:
                for rank in ranks:
                    new[rank] = self._fork_rank(server, rank, environment)
                engines = self._await_ranks(new, server, client, tell)
            except BaseException:
                server.end(new.values(), 0)
                raise
            self._ranks.update(new)
            self._engines.update(engines)
            self._watch(new)
            return engines

    def discard(self, ranks: Collection[int]) -> None:
        """End ranks, at once; see `Cluster.discard`."""
        with self._lock:
            if self._server is not None:
                self._server.end([self._ranks[rank] for rank in ranks if rank in self._ranks], 0)

    def folder(self) -> str:
        """Return the session's folder."""
        return str(self._server.folder) if self._server is not None else ""

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank."""
        if self._server is not None:
            self._server.signal(self._ranks[rank], number)

    def flush(self) -> None:
        """Return when what ranks have printed so far has been told."""
        if self._server is not None:
            self._server.flush()

    def end_ranks(self, grace_s: float) -> None:
        """End the ranks; the server, the controller and the client stay."""
        with self._lock:
            self._ending = True
            if self._server is None or self._client is None:
                return
            if self._server.end(self._ranks.values(), grace_s):
                for engine_id in self._engines.values():
                    self._client.report_death(engine_id)
            else:  # it has gone, or is suspended and new ranks would wait for it
                self._close_server()
            self._ranks, self._engines = {}, {}

    def stop(self) -> None:
        """End all processes at once and remove the folder."""
        self._ending = True
        if (server := self._server) is not None:
            server.abandon()  # so that whoever holds the lock has nothing more to wait for
        with self._lock:
            self._close_server()
            self._ranks, self._engines = {}, {}

    # ---- what ranks need

    def _prepare(self) -> tuple[ForkServer, StreamingClient]:
        """Have a server, a controller and a client; the lock is held."""
        if self._server is not None and not (self._serves(self._server) and self._answers()):
            self._close_server()
        try:
            if self._server is None:
                with uninterrupted("the start was stopped"):  # or nobody held what has begun
                    self._take(ForkServer(self.preload))
            server = self._server
            assert server is not None
            if self._client is None:  # a client that knows no engine counts as false
                self._connect(server)
            client = self._client
            assert client is not None
        except BaseException:
            self._close_server()
            raise
        return server, client

    def _serves(self, server: ForkServer) -> bool:
        """Whether the server can make ranks like those that are wanted now."""
        assert server.controller is not None
        failed = server.loaded.done() and server.loaded.exception() is not None
        return (
            server.alive
            and not failed
            and not server.controller.ended.done()
            and server.preload == self.preload
            and not changed_too_late(server.environment, os.environ)
        )

    def _answers(self) -> bool:
        """Whether the controller, if there is one already, is not suspended."""
        return self._client is None or self._client.controller_answers(_ANSWER_TIMEOUT_S)

    def _close_server(self) -> None:
        if self._client is not None:
            self._client.close(linger=0)
        if self._server is not None:
            self._server.close()
        self._client = self._server = None

    def _take(self, server: ForkServer) -> None:
        """Make ranks with this server from now on."""
        self._server = server
        controller = server.controller or server.fork_controller()
        controller.ended.add_done_callback(partial(self._on_controller_end, server))
        server.lost.add_done_callback(partial(self._on_server_lost, server))

    def _connect(self, server: ForkServer) -> None:
        assert server.controller is not None
        ready = server.controller.ready
        _await([ready], server, _CONTROLLER_TIMEOUT_S, "The controller did not start")
        info = ready.result()
        self._connection = json.dumps(info["engine"])
        with uninterrupted("the start was stopped"):  # nor may a client be left half made
            folder = str(server.folder)  # for what it would else look for in the user's home
            self._client = StreamingClient(
                info["client"], profile_dir=f"{folder}/profile", ipython_dir=folder
            )

    def _fork_rank(
        self, server: ForkServer, rank: int, environment: Mapping[str, str]
    ) -> ForkedProcess:
        profile = str(server.folder / "profile")
        return server.fork(
            "ddp_magic.rank.process:run",
            {
                "connection": self._connection,
                "args": [f"--profile-dir={profile}", *_ENGINE_ARGS],
                "path": module_path(),
            },
            name=f"Rank {rank}",
            environment={**os.environ, **ipython_environment(server.folder), **environment},
            is_rank=True,
            on_output=partial(self._events.rank_printed, rank),
            tail_bytes=_TAIL_BYTES,
        )

    def _watch(self, ranks: Mapping[int, ForkedProcess]) -> None:
        for rank, process in ranks.items():
            process.ended.add_done_callback(partial(self._on_rank_end, rank))

    def _await_ranks(
        self,
        ranks: Mapping[int, ForkedProcess],
        server: ForkServer,
        client: StreamingClient,
        tell: Callable[[str], None],
    ) -> dict[int, int]:
        nproc = len(ranks)

        def tell_count(up: int) -> None:
            tell(f"{up} of {nproc} ranks up")

        ready = [process.ready for process in ranks.values()]
        missing = f"{nproc} ranks did not all register"
        _await(ready, server, _RANKS_TIMEOUT_S, missing, tell_count)
        engines = {rank: one.ready.result()["engine_id"] for rank, one in ranks.items()}
        if not client.await_engines(engines.values(), _RANKS_TIMEOUT_S):
            raise StartError("The controller did not report the ranks in time.")
        return engines

    # ---- what happens meanwhile, on the server's thread

    def _on_rank_end(self, rank: int, ended: Future[ProcessEnd]) -> None:
        server, client, engine_id = self._server, self._client, self._engines.get(rank)
        if self._ending or server is None or not server.alive:
            return
        self._events.rank_ended(rank, ended.result())
        if client is not None and engine_id is not None:
            client.report_death(engine_id)

    def _on_controller_end(self, server: ForkServer, ended: Future[ProcessEnd]) -> None:
        if server is self._server and server.alive:
            self._ending = True
            self._events.lost(f"the controller {ended.result().sentence}")
            server.abandon()

    def _on_server_lost(self, server: ForkServer, lost: Future[str]) -> None:
        if server is self._server and not self._ending:
            self._events.lost(lost.result())


def _await(
    futures: Iterable[Future[Any]],
    server: ForkServer,
    timeout_s: float,
    otherwise: str,
    tell: Callable[[int], None] | None = None,
) -> None:
    """Wait for all of them; raise the first's failure at once, `StartError` when time is over."""
    futures = list(futures)
    pending, deadline_s = set(futures), time.monotonic() + timeout_s
    while pending:
        if tell is not None:
            tell(len(futures) - len(pending))
        done, pending = wait(pending, timeout=_POLL_S, return_when=FIRST_COMPLETED)
        if server.loaded.done():
            server.loaded.result()  # what the server could not import is why others fail
        for future in done:
            future.result()
        if pending and server.lost.done():
            raise StartError(f"While the ranks started, {server.lost.result()}.")
        if pending and time.monotonic() > deadline_s:
            raise StartError(
                f"{otherwise} within {timeout_s:g} s.",
                fix="The machine may be short of memory or processors: start fewer ranks with -n.",
            )
