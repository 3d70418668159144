"""The ranks that run: who they are, how they were started, how they are asked."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import math
import os
import pickle
import resource
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from ipyparallel import error as ipp_error

from ddp_magic import errors
from ddp_magic.core import needs
from ddp_magic.core.advice import advice_on
from ddp_magic.core.failures import FailureStory, way_back
from ddp_magic.core.healed import Healed
from ddp_magic.core.options import StartOptions
from ddp_magic.core.ranks import check_ranks, format_ranks
from ddp_magic.core.status import RankStatus
from ddp_magic.core.topology import Topology, choose_topology, rank_environment, visible_devices
from ddp_magic.core.unsent import Received
from ddp_magic.errors import SetupError, StartError, StateError
from ddp_magic.kernel.client import StreamingClient
from ddp_magic.kernel.cluster import Cluster
from ddp_magic.kernel.devices import gpu_count
from ddp_magic.kernel.interrupts import uninterrupted
from ddp_magic.kernel.machine import core_count, free_bytes, reserve_port
from ddp_magic.version import __version__

_JOIN_TIMEOUT_S = 120
_CALL_TIMEOUT_S = 60
_ASK_TIMEOUT_S = 10.0
_FREED_TIMEOUT_S = 5
_POLL_S = 0.1
_PRINTED_CHARS = 4000
_PRINTED_LINES = 15
_STACK_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + 3 * hasattr(signal, "SIGRTMIN")
_STORE_BYTES = 65_536  # more than a new process group writes
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass
class Losses:
    """What has ended that was not to.

    Attributes
    ----------
    dead
        How each rank ended, as what follows "rank 3".
    lost
        What ended that all ranks need; or ``""``.
    printed
        What compiled code of each rank has written so far.
    """

    dead: dict[int, str] = field(default_factory=dict)
    lost: str = ""
    printed: dict[int, str] = field(default_factory=dict)

    def note_printed(self, rank: int, text: str) -> None:
        """Keep the end of what a rank writes."""
        self.printed[rank] = (self.printed.get(rank, "") + text)[-_PRINTED_CHARS:]

    def last_words(self, rank: int) -> str:
        """Return the last lines that a rank wrote, under a heading; or ``""``."""
        lines = self.printed.get(rank, "").strip().splitlines()[-_PRINTED_LINES:]
        return "\n".join([f"The last that rank {rank} wrote:", *lines]) if lines else ""

    def clear(self) -> None:
        """Begin anew."""
        self.dead.clear()
        self.printed.clear()
        self.lost = ""


@dataclass
class World:
    """The ranks of a session, from their start to their end.

    Attributes
    ----------
    engines
        The ipyparallel engine of each rank.
    places
        What each rank said of itself when it joined, in rank order.
    losses
        What has ended that was not to.
    received
        How much has come of what each rank printed.
    lacks_widgets
        Whether it was said that widgets are not shown.
    """

    topology: Topology
    seed: int
    cluster: Cluster
    client: StreamingClient
    engines: Mapping[int, int]
    losses: Losses
    places: list[dict[str, Any]] = field(default_factory=list)
    received: Received = field(default_factory=Received)
    lacks_widgets: bool = False
    port: socket.socket = field(default_factory=reserve_port)  # that MASTER_PORT names
    run_id: str = field(default_factory=lambda: secrets.token_hex(4))

    def __post_init__(self) -> None:
        self.store = self._new_store()

    @property
    def dead(self) -> dict[int, str]:
        """How each rank that has died did so."""
        return self.losses.dead

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.engines)

    def close(self) -> None:
        """Give back what this process holds for the ranks."""
        self.port.close()
        _remove(self.store)

    def regroup(self) -> bool:
        """Have the ranks, none of which may be busy, leave their process group for a new one.

        Returns
        -------
        bool
            Whether the user had made groups beside it, which have gone, too.

        Raises
        ------
        StateError
            There is no space for it; nothing was changed.
        """
        try:
            with tempfile.TemporaryFile(dir=self.cluster.folder()) as room:
                room.write(bytes(_STORE_BYTES))
        except OSError as error:
            raise StateError(
                f"The ranks' process group cannot be made anew: {error} ({self.cluster.folder()}).",
                fix=advice_on(str(error)),
            ) from None
        _remove(self.store)
        self.store = self._new_store()
        return any(self.call("ddp_magic.rank.engine:regroup", {"store": str(self.store)}, None))

    def heal(self, tell: Callable[[str], None]) -> Healed:
        """Replace dead ranks by new ones that have a living one's variables.

        No rank may be busy. If it fails, nothing new is left, and the ranks that live have lost
        no more than their process group.

        Parameters
        ----------
        tell
            Is called with a few words on what is being waited for.

        Raises
        ------
        StateError, SetupError, StartError
            Dead ranks cannot be replaced, or died again.
        """
        dead, engines = dict(self.dead), self.engines
        alive = [rank for rank in engines if rank not in dead]
        if not alive:
            raise StateError(
                f"There is no rank left: {FailureStory({}, (), dead).summary()}.",
                fix=f"{way_back(dead, engines)}.",
            )
        _check_room(self.size, len(alive))
        pending: dict[int, Future[Any]] = {}
        try:
            new = self.cluster.replace(tuple(dead), _engine_environment(self.topology), tell)
            self.engines = {**engines, **new}
            for rank in dead:
                del self.dead[rank]
                self.received.begin_anew(rank)
            return self._join_again(tuple(dead), min(alive), tell, pending)
        except BaseException:
            with uninterrupted(""):
                self.cluster.discard(tuple(dead))
                self.engines = engines
                self.dead.update(dead)
                self._free(pending)
            raise

    def _join_again(
        self,
        replaced: tuple[int, ...],
        source: int,
        tell: Callable[[str], None],
        pending: dict[int, Future[Any]],
    ) -> Healed:
        """Have all ranks join a new process group, then the new ones be as the source."""
        tell("the ranks connect to each other")
        _remove(self.store)
        self.store = self._new_store()
        target = "ddp_magic.rank.engine:regroup"
        calls = {rank: (target, {"store": str(self.store)}) for rank in self.engines}
        for rank in replaced:
            calls[rank] = ("ddp_magic.rank.engine:join", _joining(self)[rank])
        joined = self._call_each(calls, pending, _JOIN_TIMEOUT_S)
        for rank in replaced:
            self.places[rank] = joined[rank]
        tell(f"rank {source}'s variables are copied")
        target = "ddp_magic.rank.healing:take_part"
        payload: dict[str, Any] = {"source": source, "replaced": replaced}
        calls = dict.fromkeys(self.engines, (target, payload))
        told = self._call_each(calls, pending, None)[source]
        return Healed(replaced, source, subgroups=joined[source], **told)

    def _free(self, pending: Mapping[int, Future[Any]]) -> None:
        """End what ranks that live wait for as they join others; return when they have."""
        waiting = {r: f for r, f in pending.items() if r not in self.dead and not f.done()}
        if not waiting or self.losses.lost:
            return
        _block(self.store)
        for rank in waiting:
            self.client.free(self.engines[rank])
        concurrent.futures.wait(waiting.values(), _FREED_TIMEOUT_S)

    def _call_each(
        self,
        calls: Mapping[int, tuple[str, dict[str, Any]]],
        pending: dict[int, Future[Any]],
        timeout_s: float | None,
    ) -> dict[int, Any]:
        """Call a function on each rank, into ``pending``; see `_gather`."""
        for rank, (target, payload) in calls.items():
            try:
                pending[rank] = self.client.call(self.engines[rank], target, payload)
            except (KeyError, RuntimeError):  # its engine has gone, or the client is closed
                _check_alive(self)
                raise
        return _gather(self, pending, timeout_s)

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank's process."""
        self.cluster.signal(rank, number)

    def request_stack(self, rank: int) -> None:
        """Have a rank write where its main thread is, which it does whatever it is at."""
        self.cluster.signal(rank, _STACK_SIGNAL)

    def stack(self, rank: int) -> str:
        """Return what a rank has written when it was asked for its stack; ``""`` if nothing."""
        try:
            return Path(self.cluster.folder(), f"stack-{rank}").read_text(errors="replace")
        except OSError:
            return ""

    def describe(self) -> str:
        """Return one line: how many ranks, on what, over which backend."""
        topology, threads = self.topology, self.topology.threads
        ranks = "1 rank" if self.size == 1 else f"{self.size} ranks"
        parts = [f"{ranks} on {'GPU' if topology.on_gpu else 'CPU'}, {topology.backend}"]
        if not topology.on_gpu:
            parts.append("1 thread each" if threads == 1 else f"{threads} threads each")
        if topology.note:
            parts.append(topology.note)
        elif not topology.on_gpu and any(place["cuda"] for place in self.places):
            parts.append("the GPUs are idle (--backend nccl uses them)")
        if self.cluster.note:
            parts.append(self.cluster.note)
        return ", ".join(parts)

    def check_same(self, wanted: StartOptions) -> None:
        """Raise `StateError` if ranks like those that are wanted would be others than these."""
        backend = self.topology.backend
        checks = (
            ("-n", wanted.nproc, self.size, wanted.nproc in (None, self.size)),
            (
                "--backend",
                wanted.backend,
                backend,
                wanted.backend in (None, "auto") or wanted.backend in backend,
            ),
            ("--seed", wanted.seed, self.seed, wanted.seed in (None, self.seed)),
        )
        for option, given, running, same in checks:
            if not same:
                raise StateError(
                    f"{option} {given}: the ranks that run have {option} {running}, and a change"
                    " would lose their variables.",
                    fix=f"Run `%ddp restart {option} {given}` to start afresh.",
                )

    def _new_store(self) -> Path:
        # Of a new name: what another group has left in one would be taken for its ranks'.
        return Path(self.cluster.folder(), f"store-{secrets.token_hex(4)}")

    def targets(self, ranks: Iterable[int] | None) -> dict[int, int]:
        """Return the engines of some ranks, all by default.

        Raises
        ------
        UsageError
            There is no such rank.
        StateError
            One of them has died.
        """
        wanted = tuple(self.engines) if ranks is None else check_ranks(ranks, self.size)
        dead = {rank: self.dead[rank] for rank in wanted if rank in self.dead}
        if dead:
            alive = format_ranks(rank for rank in self.engines if rank not in self.dead)
            others = f"; -r {alive.replace(' ', '')} uses the others" if alive else ""
            raise StateError(
                f"Dead: {'; '.join(FailureStory({}, (), dead).lines())}.",
                fix=f"{way_back(self.dead, self.engines)}{others}.",
            )
        return {rank: self.engines[rank] for rank in sorted(wanted)}

    def call(self, target: str, payload: dict[str, Any], ranks: Iterable[int] | None) -> list[Any]:
        """Call a function on some ranks (see `core.invoke`) and return what each returned."""
        engines = self.targets(ranks)
        futures = [self.client.call(engine_id, target, payload) for engine_id in engines.values()]
        concurrent.futures.wait(futures, timeout=_CALL_TIMEOUT_S)
        for rank, future in zip(engines, futures, strict=True):
            if not future.done():
                raise StateError(f"Rank {rank} did not answer within {_CALL_TIMEOUT_S} s.")
            if isinstance(future.result(), ipp_error.RemoteError):
                raise _as_raised(future.result(), f"Rank {rank}: ")
        return [future.result() for future in futures]

    def ask(
        self,
        target: str,
        payload: dict[str, Any],
        ranks: Iterable[int] | None = None,
        timeout_s: float = _ASK_TIMEOUT_S,
    ) -> dict[int, Any]:
        """Call a function on ranks (by default those that live), also while they run a cell.

        It runs on a thread of its own there (see `ddp_magic.rank.asked`).

        Returns
        -------
        dict of int to Any
            What each rank returned; a `DdpMagicError` where it raised one, has died or does not
            answer.
        """
        wanted = tuple(self.engines) if ranks is None else check_ranks(ranks, self.size)
        return self.ask_each(target, dict.fromkeys(sorted(wanted), payload), timeout_s)

    def ask_each(
        self, target: str, payloads: Mapping[int, dict[str, Any]], timeout_s: float
    ) -> dict[int, Any]:
        """Call a function on ranks as `ask` does, each with a payload of its own."""
        told: dict[int, Any] = {}
        futures: dict[int, Future[Any]] = {}
        for rank, payload in payloads.items():
            with suppress(KeyError):  # its engine has just gone
                if rank not in self.dead:
                    futures[rank] = self.client.ask(self.engines[rank], target, payload)
        until_s = time.monotonic() + timeout_s
        while (left := [f for r, f in futures.items() if r not in self.dead and not f.done()]) and (
            time.monotonic() < until_s
        ):
            concurrent.futures.wait(left, timeout=_POLL_S)
        for rank in payloads:
            told[rank] = self._answer(rank, futures.get(rank), timeout_s)
        return told

    def _answer(self, rank: int, future: Future[Any] | None, timeout_s: float) -> Any:
        """Return what a rank has answered, or the error that stands for it."""
        if future is not None and future.done() and isinstance(future.result(), dict):
            good, result = pickle.loads(future.result()["buffers"][0])
            if good:
                return result
            name, text = result
            kind = getattr(errors, name, None)
            return kind(text) if kind is not None else StateError(f"{name}: {text}")
        if rank in self.dead or future is None or future.done():
            return StateError(f"rank {rank} {self.dead.get(rank, 'has died')}")
        return StateError(
            f"rank {rank} did not answer within {timeout_s:g} s:"
            " it is in compiled code that lets no other run"
        )

    def status_of(self, rank: int, *, busy: bool, last_error: str) -> RankStatus:
        """Return what is known of a rank without asking it."""
        place, dead = self.places[rank], self.dead.get(rank, "")
        return RankStatus(
            rank=rank,
            pid=place["pid"],
            host=place["host"],
            device=place["device"],
            state=dead.partition(" (")[0] or ("running" if busy else "ready"),
            rss_bytes=None if dead else _rss_bytes(place["pid"]),
            last_error=last_error,
        )


def plan_topology(wanted: StartOptions, preload: Iterable[str] = (), running: int = 0) -> Topology:
    """Decide on the ranks of a local session.

    Parameters
    ----------
    preload
        Modules that are to be imported for them.
    running
        Number of ranks that these replace.

    Raises
    ------
    UsageError, SetupError
        What is wanted cannot be had here.
    """
    if importlib.util.find_spec("torch") is None:
        raise SetupError(
            f"torch is not installed in this environment ({sys.prefix}).",
            fix="Install it: https://pytorch.org/get-started/locally",
        )
    for module in preload:
        # Of its package alone: to look further would import that here.
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            raise SetupError(
                f"No module named {module}, which is to be imported for the ranks.",
                fix="Take it out of DdpMagics.preload, or install it.",
            )
    visible = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), gpu_count())
    topology = choose_topology(
        wanted.nproc,
        wanted.backend,
        gpu_count=len(visible),
        core_count=core_count(),
        environ=os.environ,
    )
    if topology.world_size > running:
        _check_room(topology.world_size, running)
    return topology


def start_world(
    cluster: Cluster,
    topology: Topology,
    wanted: StartOptions,
    losses: Losses,
    tell: Callable[[str], None],
) -> World:
    """Start engines and make them ranks; they have made a first collective when this returns.

    Parameters
    ----------
    losses
        Where the cluster's losses are noted.
    tell
        Is called with a few words on what is being waited for.

    Raises
    ------
    StartError
        The ranks did not start, or did not join each other; the caller ends the cluster.
    """
    client, engines = cluster.start(topology.world_size, _engine_environment(topology), tell)
    seed = secrets.randbelow(2**31) if wanted.seed is None else wanted.seed
    world = World(topology, seed, cluster, client, engines, losses)
    tell("the ranks connect to each other")
    try:
        world.places = _join(world, _joining(world))
    except BaseException:
        world.close()
        raise
    return world


def _engine_environment(topology: Topology) -> dict[str, str]:
    # Nothing of a local session listens beyond loopback, whatever a cluster's profile set.
    environment = {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": _LOOPBACK}
    if not os.environ.get("OMP_NUM_THREADS"):
        environment["OMP_NUM_THREADS"] = str(topology.threads)
    return environment


def _joining(world: World) -> list[dict[str, Any]]:
    """Return what each rank is told of its place."""
    topology, port, run_id = world.topology, world.port.getsockname()[1], world.run_id
    payloads = []
    for rank, device in enumerate(topology.devices):
        environment = rank_environment(
            rank, topology.world_size, master_addr="127.0.0.1", master_port=port, run_id=run_id
        )
        membership = {
            "rank": rank,
            "local_rank": rank,
            "world_size": topology.world_size,
            "backend": topology.backend,
            "device": device,
            "store": str(world.store),
            "stack_signal": _STACK_SIGNAL,
            "threads": topology.threads,
            "environment": environment,
        }
        payloads.append({"version": __version__, "seed": world.seed, "membership": membership})
    return payloads


def _join(world: World, payloads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    futures = {
        rank: world.client.call(world.engines[rank], "ddp_magic.rank.engine:join", payload)
        for rank, payload in enumerate(payloads)
    }
    return list(_gather(world, futures, _JOIN_TIMEOUT_S).values())


def _gather(
    world: World, futures: Mapping[int, Future[Any]], timeout_s: float | None
) -> dict[int, Any]:
    """Return what each rank returned as they joined each other.

    Raises
    ------
    StartError
        One has died, all have been lost, or it took too long.
    Exception
        What a rank raised.
    """
    deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    pending = set(futures.values())
    while pending:
        done, pending = concurrent.futures.wait(
            pending, timeout=_POLL_S, return_when=concurrent.futures.FIRST_COMPLETED
        )
        _check_alive(world)  # first: a call that was on its way fails because of a death
        for rank, future in futures.items():
            if future in done and isinstance(future.result(), ipp_error.RemoteError):
                raise _as_raised(future.result(), f"Rank {rank}: ", world.losses.last_words(rank))
        if time.monotonic() > deadline_s:
            raise StartError(f"The ranks did not join each other within {timeout_s:g} s.")
    return {rank: future.result() for rank, future in futures.items()}


def _check_alive(world: World) -> None:
    """Raise `StartError` if a rank has died as they joined each other, or all were lost."""
    if world.losses.lost:
        raise StartError(f"While the ranks joined each other, {world.losses.lost}.")
    for rank, what in world.dead.items():
        said = world.losses.last_words(rank)
        raise StartError(f"Rank {rank} {what} while it joined the others.", context=said)


def _block(store: Path) -> None:
    """Put a folder in the place of a store: whoever waits in that gets an error at once."""
    _remove(store)
    store.mkdir()


def _remove(store: Path) -> None:
    if store.is_dir():
        store.rmdir()
    else:
        store.unlink(missing_ok=True)
    Path(f"{store}-board").unlink(missing_ok=True)


def _as_raised(error: ipp_error.RemoteError, prefix: str, said: str = "") -> Exception:
    """Return a rank's error as this package's own, with the traceback if it was not one."""
    kind = getattr(errors, error.ename, None)
    if kind is not None:
        return kind(prefix + error.evalue, context=said)
    return StartError(f"{prefix}{error.ename}: {error.evalue}", context=str(error.traceback or ""))


def _check_room(nproc: int, running: int) -> None:
    """Refuse what would leave this machine without memory or files before anything is trained."""
    needed = needs.memory_bytes(nproc, running)
    free = free_bytes()
    if needed > free:
        raise SetupError(
            f"-n {nproc}: that many ranks need {needed / 2**30:,.1f} GiB of memory before your own"
            f" data ({needs.RANK_BYTES // 2**20} MiB each, {needs.TORCH_BYTES // 2**20} MiB for"
            f" torch), and {free / 2**30:,.1f} GiB are free.",
            fix="Start fewer, or free some.",
        )
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = needs.open_files(nproc)
    if most_files != resource.RLIM_INFINITY and needed > most_files:
        raise SetupError(
            f"-n {nproc}: that many ranks need {needed:,} open files in one process, and the limit"
            f" is {most_files:,} (`ulimit -Hn`).",
            fix="Start fewer, or have the limit raised.",
        )


def _rss_bytes(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return None
