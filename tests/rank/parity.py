"""Run a training cell in one process and on ranks, and compare what it trained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from tests.rank.harness import ListReport, RankFailed, run_each, run_on_ranks, run_single

TOLERANCE = 1e-5
COLLECTED = ("trace", "noted")

PRELUDE = """
import contextlib, copy, gc, io, pickle, weakref
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist

def part(t):
    "This rank's part of a global batch."
    return t.chunk(world_size)[rank]

trace = []

def record(*what):
    "Keep the parameters as they are after a step."
    for one in what:
        tensors = one.parameters() if isinstance(one, nn.Module) else [one]
        trace.append([t.detach().clone().to_dense() for t in tensors])

noted = []

def see(**what):
    "Note what a user would see, such as a length, a name or a metric."
    noted.append(what)

def attacher():
    "The Attacher of this rank."
    from ddp_magic.rank.attach import Attacher
    return next(one for one in gc.get_objects() if type(one) is Attacher)

def same_on_all_ranks(tensor):
    rows = [torch.empty_like(tensor) for _ in range(world_size)]
    dist.all_gather(rows, tensor.detach().contiguous())
    return all(torch.equal(rows[0], row) for row in rows)

x, y = torch.randn(16, 4), torch.randn(16, 1)
"""


def train(
    world_size: int, *cells: str, collect: tuple[str, ...] = (), seed: int = 0
) -> list[dict[str, Any]]:
    """Run the cells on ranks, check that the recorded parameters are bit-identical, return all."""
    found = run_on_ranks(world_size, PRELUDE, *cells, collect=(*COLLECTED, *collect), seed=seed)
    check_alike(found)
    return found


def check_alike(found: list[dict[str, Any]]) -> None:
    """Check that what the ranks recorded is bit-identical, and finite."""
    for other in found[1:]:
        assert difference(found[0]["trace"], other["trace"]) == 0.0


def check_parity(
    *cells: str,
    collect: tuple[str, ...] = (),
    world_size: int = 2,
    tolerance: float = TOLERANCE,
) -> list[dict[str, Any]]:
    """Train as `train` does, and compare with one process each step and what is seen."""
    single = run_single(PRELUDE, *cells, collect=COLLECTED)
    found = train(world_size, *cells, collect=collect)
    check_as_single(found, single, tolerance)
    return found


def check_as_single(
    found: list[dict[str, Any]], single: dict[str, Any], tolerance: float = TOLERANCE
) -> None:
    """Check that the ranks trained as one process did, and that each saw what that one saw."""
    assert len(single["trace"]) > 0
    assert difference(single["trace"], found[0]["trace"]) <= tolerance
    for rank, one in enumerate(found):
        assert resembles(one["noted"], single["noted"], tolerance), (
            f"rank {rank} saw {one['noted']}, one process {single['noted']}"
        )


class Runs:
    """What patterns train, some of them in the same processes, which take longer to start.

    Parameters
    ----------
    patterns
        Cells by name; several are parted by a line ``# %%``.
    """

    _TOGETHER = 12

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = patterns
        self._names = list(patterns)
        self._found: dict[tuple[str, int], list[dict[str, Any]] | RankFailed] = {}

    def of(self, pattern: str, world_size: int) -> list[dict[str, Any]]:
        """Return what each rank recorded; with a world size of 0, what one process did."""
        if (pattern, world_size) not in self._found:
            self._run_group_of(pattern, world_size)
        found = self._found[pattern, world_size]
        if isinstance(found, RankFailed):
            raise found
        return found

    def _run_group_of(self, pattern: str, world_size: int) -> None:
        start = self._names.index(pattern) // self._TOGETHER * self._TOGETHER
        names = self._names[start : start + self._TOGETHER]
        programs = {name: (PRELUDE, *self._patterns[name].split("# %%\n")) for name in names}
        for name, found in run_each(world_size, programs, collect=COLLECTED).items():
            self._found[name, world_size] = found


def resembles(ours: Any, theirs: Any, tolerance: float) -> bool:
    """Tell whether two nested values are equal, but for the tolerance where they are floats."""
    if isinstance(theirs, float):
        return isinstance(ours, float) and math.isclose(
            ours, theirs, rel_tol=tolerance, abs_tol=tolerance
        )
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(
            resembles(ours[key], theirs[key], tolerance) for key in theirs
        )
    if isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(
            resembles(mine, other, tolerance) for mine, other in zip(ours, theirs, strict=True)
        )
    return bool(ours == theirs)


def notices(found: list[dict[str, Any]]) -> list[str]:
    """Return the lines that rank 0's user would see."""
    report: ListReport = found[0]["_report"]
    return list(report.notices.values())


def facts(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the facts that rank 0 reported."""
    report: ListReport = found[0]["_report"]
    return report.facts


def difference(ours: list[list[torch.Tensor]], theirs: list[list[torch.Tensor]]) -> float:
    """Return the largest difference between what two runs recorded, step by step."""
    assert [len(step) for step in ours] == [len(step) for step in theirs]
    pairs = [
        (a, b)
        for mine, other in zip(ours, theirs, strict=True)
        for a, b in zip(mine, other, strict=True)
    ]
    assert all(
        torch.isfinite(torch.view_as_real(a) if a.is_complex() else a).all() for a, _ in pairs
    )
    return max((float((a - b).abs().max()) for a, b in pairs), default=0.0)
