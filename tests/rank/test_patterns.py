"""Every pattern, on 2 and on 4 ranks: trained as in one process, alike on all ranks."""

from __future__ import annotations

import pytest

from tests.rank.parity import TOLERANCE, Runs, check_alike, check_as_single
from tests.rank.patterns import PATTERNS, TOLERANCES

_RUNS = Runs(PATTERNS)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_trains_as_one_process(pattern: str, world_size: int) -> None:
    (single,) = _RUNS.of(pattern, 0)
    found = _RUNS.of(pattern, world_size)
    check_alike(found)
    check_as_single(found, single, TOLERANCES.get(pattern, TOLERANCE))
