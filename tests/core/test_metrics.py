"""Points waiting to be read: none lost while they are few, evenly thinned where they are many."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ddp_magic.core.metrics import Pending


def _filled(size: int, limit: int) -> Pending[float]:
    pending: Pending[float] = Pending(limit)
    for step in range(1, size + 1):
        if pending.add(step, step / 10):
            pending.thin()
    return pending


def test_few_points_are_all_there_in_order() -> None:
    pending = _filled(100, limit=100)
    assert pending.take() == [(step, step / 10) for step in range(1, 101)]
    assert pending.take() == []
    assert pending.count == 100


@pytest.mark.parametrize("size", [101, 150, 1000, 4096, 99_999])
def test_many_points_are_thinned_evenly(size: int) -> None:
    steps = [step for step, _ in _filled(size, limit=100).take()]
    assert steps[0] == 1
    assert steps[-1] == size
    assert 50 <= len(steps) <= 102
    gaps = {later - step for step, later in pairwise(steps[:-1])}
    assert len(gaps) == 1


@pytest.mark.parametrize("limit", [100, 101])
@pytest.mark.parametrize("size", [100, 101, 102, 103, 204])
def test_latest_point_is_never_lost(size: int, limit: int) -> None:
    assert _filled(size, limit).take()[-1] == (size, size / 10)


def test_latest_point_is_taken_once() -> None:
    pending = _filled(250, limit=100)
    assert pending.take()[-1] == (250, 25.0)
    assert pending.take() == []


def test_after_a_take_every_point_is_kept_again() -> None:
    pending = _filled(1000, limit=100)
    pending.take()
    for step in range(1001, 1011):
        pending.add(step, 0.0)
    assert [step for step, _ in pending.take()] == list(range(1001, 1011))
