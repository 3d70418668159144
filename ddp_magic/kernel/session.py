"""A session: ranks that live from cell to cell, and everything that can be asked of them."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import os
import secrets
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

import psutil
from ipyparallel import error as ipp_error

from ddp_magic import errors
from ddp_magic.core.lifecycle import Event, Lifecycle, State
from ddp_magic.core.options import CellOptions
from ddp_magic.core.plan import CellPlan
from ddp_magic.core.ranks import check_ranks, format_ranks
from ddp_magic.core.status import RankStatus, SessionStatus
from ddp_magic.core.topology import Topology, choose_topology, rank_environment, visible_devices
from ddp_magic.core.view import View
from ddp_magic.errors import CellInterrupted, CellTimeout, SetupError, StartError, StateError
from ddp_magic.kernel.background import BackgroundCell
from ddp_magic.kernel.cellrun import CellRun
from ddp_magic.kernel.client import StreamingClient
from ddp_magic.kernel.cluster import LocalCluster, registered_ids
from ddp_magic.kernel.devices import gpu_count
from ddp_magic.kernel.source import check_syntax
from ddp_magic.kernel.textview import TextView
from ddp_magic.version import __version__

_JOIN_TIMEOUT_S = 120
_CALL_TIMEOUT_S = 60
_INTERRUPT_GRACE_S = 2.0
_METADATA_KEY = "ddp_magic"
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class Session:
    """Ranks that train together and keep their variables from cell to cell.

    Parameters
    ----------
    nproc
        Number of ranks; by default one per visible GPU, or 2 on the CPU.
    backend
        ``"auto"``, ``"nccl"`` or ``"gloo"``.
    seed
        The one seed that all ranks start from; by default a new one each time.

    Examples
    --------
    >>> with Session(nproc=2) as session:
    ...     session.run("x = rank + 1")
    ...     session.pull("x")
    [1, 2]
    """

    def __init__(
        self, nproc: int | None = None, *, backend: str | None = None, seed: int | None = None
    ) -> None:
        self._wanted_nproc = nproc
        self._wanted_backend = backend
        self._wanted_seed = seed
        self._life = Lifecycle()
        self._life_lock = threading.RLock()
        self._cluster = LocalCluster()
        self._finalizer = weakref.finalize(self, self._cluster.stop)
        self._topology: Topology | None = None
        self._engines: dict[int, int] = {}
        self._places: list[dict[str, Any]] = []
        self._dead: dict[int, str] = {}
        self._last_errors: dict[int, str] = {}
        self._seed = 0
        self._run: CellRun | None = None
        self._background: BackgroundCell | None = None

    # ---- the ranks' life

    def start(self) -> None:
        """Start the ranks; they are ready, and have made a first collective, when this returns.

        Raises
        ------
        UsageError, SetupError
            What was asked for cannot be had here; nothing was started.
        StartError
            The ranks did not start; nothing is left running.
        StateError
            They run already.
        """
        self._on(Event.START)
        try:
            self._topology = self._plan()
            self._seed = secrets.randbelow(2**31) if self._wanted_seed is None else self._wanted_seed
            client = self._cluster.start(self._topology.world_size, self._engine_environment())
            client.on_engine_death(self._note_death)
            self._engines = dict(enumerate(registered_ids(client)))
            self._places = self._join(client)
        except BaseException:
            self._cluster.stop()
            self._forget()
            self._on(Event.START_FAILED)
            raise
        self._on(Event.RANKS_READY)

    def stop(self) -> None:
        """End the ranks; their variables are gone. Does nothing if there are none."""
        if not self._life.allows(Event.STOP):
            return
        self._on(Event.STOP)
        if self._run is not None:
            for rank in self._engines:
                self._run.lose(rank, "was stopped")
        self._cluster.stop()
        self._forget()
        self._on(Event.STOPPED)

    def restart(
        self, nproc: int | None = None, *, backend: str | None = None, seed: int | None = None
    ) -> None:
        """End the ranks and start new ones, as before but for what is given."""
        self.stop()
        self._want(nproc, backend, seed)
        self.start()

    def configure(
        self, nproc: int | None = None, *, backend: str | None = None, seed: int | None = None
    ) -> None:
        """Say what the next start is to be like.

        Raises
        ------
        StateError
            If ranks are running that are unlike it.
        """
        if self._life.allows(Event.START):
            self._want(nproc, backend, seed)
        else:
            self._check_unchanged(nproc, backend, seed)

    @property
    def started(self) -> bool:
        """Whether there are ranks."""
        return bool(self._engines)

    @property
    def world_size(self) -> int:
        """Number of ranks, 0 before they start."""
        return len(self._engines)

    def describe(self) -> str:
        """Return one line on the ranks that run: how many, on what, over which backend."""
        assert self._topology is not None
        topology = self._topology
        kind = "GPU" if topology.on_gpu else "CPU"
        parts = [f"{self.world_size} ranks on {kind}, {topology.backend}"]
        if topology.threads is not None and not topology.on_gpu:
            parts.append(f"{topology.threads} thread{'s' if topology.threads > 1 else ''} each")
        idle_gpus = any(place["cuda"] for place in self._places) and not topology.on_gpu
        parts += [topology.note] if topology.note else []
        parts += ["the GPUs are not used (--backend nccl uses them)"] if idle_gpus else []
        return ", ".join(parts)

    def status(self) -> SessionStatus:
        """Return the state of the session and of each rank, at once, whatever the ranks do."""
        if self._topology is None:
            return SessionStatus(self._life.state.value)
        ranks = tuple(self._rank_status(place) for place in self._places)
        return SessionStatus(self._life.state.value, self._topology.backend, self._seed, ranks)

    # ---- cells

    def run(
        self,
        code: str,
        options: CellOptions | None = None,
        *,
        view: View | None = None,
        header: str = "",
        execution_count: int | None = None,
        **changes: Any,
    ) -> BackgroundCell | None:
        """Run code on the ranks, starting them first if need be.

        Parameters
        ----------
        code
            A cell: Python, magics, ``!shell``, top-level ``await``.
        options
            As for ``%%ddp``; ``changes`` are options by name (``ranks=(0,)``, ``background=True``).
        view
            Where the output goes; by default this process's own streams.
        header
            The lines above ``code`` in its notebook cell, for line numbers.
        execution_count
            The cell's number in the notebook, for tracebacks.

        Returns
        -------
        BackgroundCell or None
            A handle, if ``background`` was asked for.

        Raises
        ------
        SyntaxError
            Before anything runs.
        CellError
            The cell failed on one rank or more.
        CellInterrupted
            It was stopped (a `KeyboardInterrupt`).
        CellTimeout
            It ran longer than ``timeout_s``.
        """
        options = replace(options or CellOptions(), **changes)
        check_syntax(code, header)
        self._await_background()
        self.configure(options.nproc, backend=options.backend)
        if not self.started:
            self.start()
        self._settle_last_run()
        engines = self._targets(options.ranks)
        plan = CellPlan(
            execution_count=execution_count,
            ranks=tuple(engines),
            wrap=options.wrap,
            shard=options.shard,
            batch=options.batch,
            plot=options.plot,
            header=header,
        )
        self._on(Event.RUN_CELL)
        run = CellRun(self._client, engines, view or TextView(), options.output)
        self._run = run
        run.start(code, {_METADATA_KEY: plan.to_wire()})
        if options.background:
            self._background = BackgroundCell(lambda: self._follow(run, options.timeout_s), self)
            return self._background
        self._follow(run, options.timeout_s)
        return None

    def interrupt(self) -> None:
        """Stop the running cell on all its ranks, as Ctrl-C would."""
        run = self._run
        if run is None or not run.busy:
            return
        self._on(Event.INTERRUPT)
        run.interrupt()

    # ---- variables

    def pull(self, name: str, ranks: int | Iterable[int] | None = None) -> Any:
        """Return a variable's value on the ranks.

        Tensors come as NumPy arrays.

        Parameters
        ----------
        name
            A variable's name.
        ranks
            One rank: its value is returned. Several, or all by default: a list in rank order.

        Raises
        ------
        UsageError
            A rank has no such variable, or its value cannot travel.
        """
        engines = self._targets((ranks,) if isinstance(ranks, int) else ranks)
        values = self._call("ddp_magic.rank.transfer:pull", {"name": name}, engines)
        return values[0] if isinstance(ranks, int) else values

    def push(
        self, variables: Mapping[str, Any], ranks: int | Iterable[int] | None = None
    ) -> None:
        """Set variables on the ranks (all by default) to what they are here."""
        engines = self._targets((ranks,) if isinstance(ranks, int) else ranks)
        self._call("ddp_magic.rank.transfer:push", {"variables": dict(variables)}, engines)

    def __enter__(self) -> Session:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Session: {self.status().headline}>"

    # ---- starting

    def _plan(self) -> Topology:
        if importlib.util.find_spec("torch") is None:
            raise SetupError(
                f"torch is not installed in this environment ({sys.prefix}).",
                fix="Install it: https://pytorch.org/get-started/locally",
            )
        visible = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), gpu_count())
        return choose_topology(
            self._wanted_nproc,
            self._wanted_backend,
            gpu_count=len(visible),
            core_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            environ=os.environ,
        )

    def _engine_environment(self) -> dict[str, str]:
        assert self._topology is not None
        # Nothing of a local session listens beyond loopback, whatever a cluster's profile set.
        environment = {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": _LOOPBACK}
        if self._topology.threads is not None:
            environment["OMP_NUM_THREADS"] = str(self._topology.threads)
        return environment

    def _join(self, client: StreamingClient) -> list[dict[str, Any]]:
        futures = {
            rank: client.call(engine_id, "ddp_magic.rank.engine:join", self._joining(rank))
            for rank, engine_id in self._engines.items()
        }
        deadline_s = time.monotonic() + _JOIN_TIMEOUT_S
        pending = set(futures.values())
        while pending:
            done, pending = concurrent.futures.wait(
                pending, timeout=0.1, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in done:
                self._check_joined(future.result())
            if self._dead:
                rank, what = next(iter(self._dead.items()))
                raise StartError(f"Rank {rank} {what} while it joined the process group.")
            if time.monotonic() > deadline_s:
                raise StartError(f"The ranks did not join each other within {_JOIN_TIMEOUT_S} s.")
        return [futures[rank].result() for rank in sorted(futures)]

    @staticmethod
    def _check_joined(result: Any) -> None:
        if not isinstance(result, ipp_error.RemoteError):
            return
        if hasattr(errors, result.ename):
            raise getattr(errors, result.ename)(result.evalue)
        raise StartError(
            f"A rank could not join the others: {result.ename}: {result.evalue}",
            context=str(result.traceback or ""),
        )

    def _joining(self, rank: int) -> dict[str, Any]:
        assert self._topology is not None and self._cluster.folder is not None
        environment = rank_environment(
            rank,
            self._topology.world_size,
            master_addr="127.0.0.1",
            master_port=_free_port(),
            run_id=self._cluster.folder.name,
        )
        membership = {
            "rank": rank,
            "local_rank": rank,
            "world_size": self._topology.world_size,
            "backend": self._topology.backend,
            "device": self._topology.devices[rank],
            "store": str(self._cluster.folder / "store"),
            "threads": self._topology.threads,
            "environment": environment,
        }
        return {"version": __version__, "seed": self._seed, "membership": membership}

    def _want(self, nproc: int | None, backend: str | None, seed: int | None) -> None:
        self._wanted_nproc = self._wanted_nproc if nproc is None else nproc
        self._wanted_backend = self._wanted_backend if backend is None else backend
        self._wanted_seed = self._wanted_seed if seed is None else seed

    def _check_unchanged(self, nproc: int | None, backend: str | None, seed: int | None) -> None:
        assert self._topology is not None
        has = {"-n": self.world_size, "--backend": self._topology.backend, "--seed": self._seed}
        wanted = {"-n": nproc, "--backend": backend, "--seed": seed}
        for option, value in wanted.items():
            same = value in (None, "auto") or str(value) in str(has[option])
            if not same if option != "-n" else value not in (None, has["-n"]):
                raise StateError(
                    f"{option} {value}: the ranks that run have {option} {has[option]}, and a"
                    " change would lose their variables.",
                    fix=f"Run `%ddp restart {option} {value}` to start afresh.",
                )

    def _forget(self) -> None:
        self._topology = None
        self._engines, self._places, self._dead, self._last_errors = {}, [], {}, {}
        self._run = self._background = None

    # ---- following a cell

    @property
    def _client(self) -> StreamingClient:
        if self._cluster.client is None:
            raise StateError("No ranks have been started.", fix="Start them with `%ddp start`.")
        return self._cluster.client

    def _follow(self, run: CellRun, timeout_s: float | None) -> None:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            if not run.pump(until_s):
                raise CellTimeout(
                    f"The cell ran longer than --timeout {timeout_s:g} s and was stopped."
                )
        except KeyboardInterrupt:
            self._stop_run(run)
            raise CellInterrupted(run.story(), run.busy) from None
        except BaseException:
            self._stop_run(run)
            raise
        finally:
            run.finish()
            self._note_end(run)
        run.raise_failures()

    def _stop_run(self, run: CellRun) -> None:
        """Interrupt the ranks that are busy and give them a moment to end."""
        if run.busy and self._life.allows(Event.INTERRUPT):
            self.interrupt()
            run.pump(time.monotonic() + _INTERRUPT_GRACE_S)

    def _note_end(self, run: CellRun) -> None:
        self._last_errors.update(run.errors())
        if not run.busy:
            self._on(Event.CELL_ENDED)
            self._run = None

    def _settle_last_run(self) -> None:
        """See whether a cell that did not stop when asked has ended since."""
        run = self._run
        if run is None:
            return
        if run.pump(time.monotonic() + 0.2):
            self._note_end(run)
            return
        raise StateError(
            f"Rank {format_ranks(run.busy)} is still busy with the cell that was stopped.",
            fix="Wait for it, or end it with `%ddp restart`.",
        )

    def _await_background(self) -> None:
        if self._background is not None:
            self._background.wait()
            self._background = None

    def _note_death(self, engine_id: int) -> None:
        """On the client's thread: a rank's process has gone."""
        rank = next((r for r, e in self._engines.items() if e == engine_id), None)
        if rank is None or self._life.state is State.STOPPING:
            return
        self._dead[rank] = "died"
        if self._life.allows(Event.RANK_DIED):
            self._on(Event.RANK_DIED)
        if self._run is not None:
            self._run.lose(rank, "died")

    # ---- asking the ranks

    def _targets(self, ranks: Iterable[int] | None) -> dict[int, int]:
        """Return the engines of some ranks, all by default, or say which cannot be used."""
        wanted = tuple(self._engines) if ranks is None else check_ranks(ranks, self.world_size)
        dead = [rank for rank in wanted if rank in self._dead]
        if dead:
            alive = [rank for rank in self._engines if rank not in self._dead]
            others = f", or use the others with -r {format_ranks(alive).replace(' ', '')}"
            raise StateError(
                f"Rank {format_ranks(dead)} has died.",
                fix=f"Run `%ddp restart` to have all ranks back{others if alive else ''}.",
            )
        return {rank: self._engines[rank] for rank in sorted(wanted)}

    def _call(self, target: str, payload: dict[str, Any], engines: Mapping[int, int]) -> list[Any]:
        client = self._client
        self._await_background()
        self._settle_last_run()
        futures = [client.call(engine_id, target, payload) for engine_id in engines.values()]
        concurrent.futures.wait(futures, timeout=_CALL_TIMEOUT_S)
        for rank, future in zip(engines, futures, strict=True):
            if not future.done():
                raise StateError(f"Rank {rank} did not answer within {_CALL_TIMEOUT_S} s.")
            if isinstance(future.result(), ipp_error.RemoteError):
                raise _as_raised(rank, future.result())
        return [future.result() for future in futures]

    def _rank_status(self, place: Mapping[str, Any]) -> RankStatus:
        rank = place["rank"]
        busy = self._run is not None and rank in self._run.busy
        state = self._dead.get(rank, "running" if busy else "ready")
        return RankStatus(
            rank=rank,
            pid=place["pid"],
            host=place["host"],
            device=place["device"],
            state=state,
            rss_bytes=_rss_bytes(place["pid"]),
            last_error=self._last_errors.get(rank, ""),
        )

    def _on(self, event: Event) -> None:
        with self._life_lock:
            self._life.on(event)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _rss_bytes(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return None


def _as_raised(rank: int, error: ipp_error.RemoteError) -> Exception:
    kind = getattr(errors, error.ename, errors.DdpMagicError)
    return kind(f"Rank {rank}: {error.evalue}")
