"""Run a training cell in one process and on ranks, and compare what it trained."""

from __future__ import annotations

from typing import Any

import torch

from tests.rank.harness import ListReport, run_on_ranks, run_single

TOLERANCE = 1e-5

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
    found = run_on_ranks(world_size, PRELUDE, *cells, collect=("trace", *collect), seed=seed)
    for other in found[1:]:
        assert difference(found[0]["trace"], other["trace"]) == 0.0
    return found


def check_parity(
    *cells: str,
    collect: tuple[str, ...] = (),
    world_size: int = 2,
    tolerance: float = TOLERANCE,
) -> list[dict[str, Any]]:
    """Train as `train` does, and compare every recorded step with one process's."""
    single = run_single(PRELUDE, *cells, collect=("trace",))
    found = train(world_size, *cells, collect=collect)
    assert len(single["trace"]) > 0
    assert difference(single["trace"], found[0]["trace"]) <= tolerance
    return found


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
