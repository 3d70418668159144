"""Asks ranks for their stacks; those that cannot answer are made to write where they are."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from ddp_magic.core.ranks import check_ranks
from ddp_magic.core.stackdump import read_place
from ddp_magic.core.stacks import Frame, RankStack, Stacks, stacks_of
from ddp_magic.core.where import Place
from ddp_magic.kernel.cellrun import CellRun
from ddp_magic.kernel.world import World

_ANSWER_S = 2.0  # ranks answer within milliseconds, unless compiled code lets no other run
_WRITE_S = 1.0
_POLL_S = 0.01


def ask_stacks(world: World, ranks: Iterable[int] | None, run: CellRun | None) -> Stacks:
    """Return where ranks are (by default all), whatever they do.

    Parameters
    ----------
    run
        The cell that runs, if one does.

    Raises
    ------
    UsageError
        There is no such rank.
    """
    wanted = tuple(world.engines) if ranks is None else check_ranks(ranks, world.size)
    told = world.ask("ddp_magic.rank.stacks:stacks", {}, wanted, _ANSWER_S)
    answers = {rank: answer for rank, answer in told.items() if isinstance(answer, dict)}
    stuck = [rank for rank in told if rank not in answers and rank not in world.dead]
    others = _written(world, stuck, run)
    others |= {rank: RankStack(world.dead[rank]) for rank in told if rank in world.dead}
    if run is None:
        return stacks_of(answers, (), others, "")
    return stacks_of(answers, run.busy, others, run.name)


def _written(world: World, silent: Collection[int], run: CellRun | None) -> dict[int, RankStack]:
    """Have ranks that answer nothing write where they are, and read it."""
    before = {rank: len(world.stack(rank)) for rank in silent}
    for rank in silent:
        world.request_stack(rank)
    until_s = time.monotonic() + _WRITE_S
    while any(len(world.stack(rank)) == before[rank] for rank in silent):
        if time.monotonic() > until_s:
            break
        time.sleep(_POLL_S)
    code, cell = (run.source, run.name) if run is not None else ("", "")
    return {rank: _stack(read_place(world.stack(rank), code), cell) for rank in silent}


def _stack(place: Place, cell: str) -> RankStack:
    if not place.line:
        return RankStack(str(place), runs=True)
    frame = Frame(place.file or cell, place.line, source=place.source)
    doing = f"is at {place.line_text}, in compiled code that lets no other run"
    return RankStack(doing, True, (frame,))
