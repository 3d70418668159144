"""Cells that speak DDP themselves: trained as on a group of one rank, and kept in step once."""

from __future__ import annotations

import math

import pytest

from tests.rank.parity import TOLERANCE, Runs, check_alike, check_as_single
from tests.rank.patterns.userddp import USER_DDP

_TOLERANCES = {
    "a hook that compresses": 1e-2,
    "joined, with uneven inputs": math.inf,  # one rank alone has others' inputs not at all
}
_RUNS = Runs(USER_DDP)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("pattern", USER_DDP)
def test_trains_as_on_one_rank(pattern: str, world_size: int) -> None:
    (single,) = _RUNS.of(pattern, 0)
    found = _RUNS.of(pattern, world_size)
    check_alike(found)
    check_as_single(found, single, _TOLERANCES.get(pattern, TOLERANCE))
