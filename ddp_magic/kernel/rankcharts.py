"""Asks ranks for what they have recorded of a cell."""

from __future__ import annotations

from ddp_magic.core.rankcharts import Points, RankCharts
from ddp_magic.errors import DdpMagicError
from ddp_magic.kernel.cellrun import CellRun
from ddp_magic.kernel.world import World


def gather_charts(world: World, run: CellRun) -> RankCharts:
    """Return the losses and step times of the ranks of a cell, also while it runs."""
    told = world.ask("ddp_magic.rank.history:losses", {}, run.ranks)
    losses: dict[str, dict[int, Points]] = {}
    missing = {}
    for rank, answer in told.items():
        if isinstance(answer, DdpMagicError):
            missing[rank] = f"rank {rank}: {answer.cause}"
            continue
        for name, points in answer.items():
            losses.setdefault(name, {})[rank] = points
    return RankCharts(losses, run.step_times, missing)
