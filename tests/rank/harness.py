"""Run cells on real ranks without a notebook: forked processes, a real gloo group."""

from __future__ import annotations

import contextlib
import gc
import linecache
import multiprocessing
import os
import sys
import tempfile
import traceback
import types
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_DEADLINE_S = 120


class RankFailed(AssertionError):
    """A cell raised on a rank; the message is that rank's traceback."""


@dataclass
class ListReport:
    """A Report that keeps what it is told."""

    facts: list[tuple[str, str]] = field(default_factory=list)
    notices: dict[str, str] = field(default_factory=dict)

    def did(self, kind: str, text: str) -> None:
        self.facts.append((kind, text))

    def notice(self, key: str, text: str) -> None:
        self.notices.setdefault(key, text)


@dataclass(frozen=True)
class _Job:
    world_size: int
    store: str
    programs: tuple[tuple[str, ...], ...]
    collect: tuple[str, ...]
    wrap: bool
    shard: bool
    batch: str
    seed: int


def run_on_ranks(
    world_size: int,
    *cells: str,
    collect: tuple[str, ...] = (),
    wrap: bool = True,
    shard: bool = True,
    batch: str = "global",
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Run the cells on every rank and return each rank's collected variables.

    Besides the names asked for, ``_report`` is the rank's `ListReport` and ``_losses``
    what its `LossRecorder` drained at the end.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        job = _Job(world_size, store, (cells,), collect, wrap, shard, batch, seed)
        return next(_run(job))


def run_single(*cells: str, collect: tuple[str, ...] = (), seed: int = 0) -> dict[str, Any]:
    """Run the same cells in one plain process: the reference."""
    return next(_run(_Job(1, "", (cells,), collect, False, False, "global", seed)))[0]


def run_each(
    world_size: int,
    programs: Mapping[str, tuple[str, ...]],
    collect: tuple[str, ...] = (),
    wrap: bool = True,
) -> dict[str, list[dict[str, Any]] | RankFailed]:
    """Run several programs, one after the other in the same ranks, each as if it were alone.

    With a world size of 0, each is run in one plain process. Return what `run_on_ranks` does, by
    name. The ranks are started anew after a program that fails.
    """
    found: dict[str, list[dict[str, Any]] | RankFailed] = {}
    while left := [name for name in programs if name not in found]:
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store") if world_size else ""
            cells = tuple(programs[name] for name in left)
            job = _Job(max(world_size, 1), store, cells, collect, wrap, True, "global", 0)
            with contextlib.closing(_run(job)) as results:
                for name in left:
                    try:
                        found[name] = next(results)
                    except RankFailed as failure:
                        found[name] = failure
                        break
    return found


def _run(job: _Job) -> Generator[list[dict[str, Any]], None, None]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.rank.warm"])
    pipes, processes = [], []
    for rank in range(job.world_size):
        ours, theirs = context.Pipe()
        process = context.Process(target=_main, args=(rank, job, theirs), name=f"rank-{rank}")
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        for _ in job.programs:
            yield _receive(pipes)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _receive(pipes: list[Connection]) -> list[dict[str, Any]]:
    """Return what every rank has to say of one program."""
    replies: dict[int, Any] = {}
    while len(replies) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in replies]
        ready = multiprocessing.connection.wait(waiting, timeout=_DEADLINE_S)
        if not ready:
            raise RankFailed(f"no reply from {len(waiting)} ranks in {_DEADLINE_S} s")
        for pipe in [pipe for pipe in waiting if pipe in ready]:
            rank = pipes.index(pipe)
            try:
                status, value = pipe.recv()
            except EOFError:
                raise RankFailed(f"rank {rank} died without a reply") from None
            if status == "error":
                raise RankFailed(f"rank {rank}:\n{value}")
            replies[rank] = value
    return [_unpack(replies[rank]) for rank in range(len(pipes))]


def _unpack(blob: bytes) -> dict[str, Any]:
    import io

    import torch

    return torch.load(io.BytesIO(blob), weights_only=False)


def _pack(values: dict[str, Any]) -> bytes:
    import io

    import torch

    buffer = io.BytesIO()
    torch.save(values, buffer)
    return buffer.getvalue()


def _main(rank: int, job: _Job, pipe: Connection) -> None:
    try:
        for number in range(len(job.programs)):
            pipe.send(("ok", _pack(_serve(rank, job, number))))
        with contextlib.suppress(EOFError, OSError):
            pipe.recv()  # until all ranks are through: some may still be joining this one's group
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
    finally:
        pipe.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # a failed peer may leave this process's group unusable: do not wait for it


def _serve(rank: int, job: _Job, program: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    torch.set_default_dtype(torch.float32)
    report = ListReport()
    namespace = _main_module(rank, job.world_size)
    gc.collect()  # of the program before, nothing is left
    if job.store:
        _join(rank, job, program)
    if program == 0:
        gc.freeze()  # what is imported need not be looked at again after each program
    parts = _install(job, report) if job.store else {}
    for number, cell in enumerate(job.programs[program]):
        filename = f"<cell {number}>"
        linecache.cache[filename] = (len(cell), None, cell.splitlines(True), filename)
        exec(compile(cell, filename, "exec"), namespace)
    found = {name: namespace[name] for name in job.collect}
    losses = parts["losses"].drain() if "losses" in parts else {}
    if program + 1 < len(job.programs):
        for part in reversed(parts.values()):
            part.uninstall()
    return found | {"_report": report, "_losses": losses}


def _main_module(rank: int, world_size: int) -> dict[str, Any]:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    module.__dict__.update(rank=rank, world_size=world_size)
    return module.__dict__


def _join(rank: int, job: _Job, program: int) -> None:
    """Make a group of this program's own, as all ranks are through with the one before."""
    import torch.distributed as dist

    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(job.world_size),
        LOCAL_WORLD_SIZE=str(job.world_size),
        GLOO_SOCKET_IFNAME="lo",
    )
    file = dist.FileStore(job.store, job.world_size)
    store = dist.PrefixStore(str(program), file)
    store.set(f"here/{rank}", "")
    store.wait([f"here/{other}" for other in range(job.world_size)])
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(
        "gloo",
        store=store,
        rank=rank,
        world_size=job.world_size,
        timeout=timedelta(seconds=30),
    )


def _install(job: _Job, report: ListReport) -> dict[str, Any]:
    from ddp_magic.rank.attach import Attacher
    from ddp_magic.rank.loaders import LoaderSharder
    from ddp_magic.rank.losses import LossRecorder
    from ddp_magic.rank.untraced import Untraced

    attacher, losses = Attacher(report), LossRecorder()
    sharder = LoaderSharder(report, attacher)
    parts: dict[str, Any] = {
        "attacher": attacher,
        "sharder": sharder,
        "losses": losses,
        "untraced": Untraced(),
    }
    for part in parts.values():
        part.install()
    attacher.active = job.wrap
    sharder.shard, sharder.batch = job.shard, job.batch
    losses.recording = True
    losses.begin_cell()
    return parts
