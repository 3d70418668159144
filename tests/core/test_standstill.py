"""Whether ranks wait in vain, as several looks at them show."""

from __future__ import annotations

import pytest

from ddp_magic.core.standstill import Look, Standstill
from ddp_magic.core.where import Place

WAITS = Place(3, collective="all_reduce")


def _see(standstill: Standstill, rank: int, *looks: Look) -> None:
    for look in looks:
        standstill.see(rank, look)


def _waiting(until_s: float, place: Place = WAITS) -> list[Look]:
    return [Look(place, 7, 1.0, n * 0.25) for n in range(int(until_s / 0.25) + 1)]


def test_it_takes_several_looks() -> None:
    standstill = Standstill()
    _see(standstill, 1, *_waiting(0.5))
    assert not standstill.holds((1,))
    _see(standstill, 1, Look(WAITS, 7, 1.01, 0.75))
    assert standstill.holds((1,))


@pytest.mark.parametrize(
    "last",
    [
        Look(WAITS, 8, 1.01, 0.75),  # it has made another collective
        Look(WAITS, 7, 1.4, 0.75),  # it computes, or would
        Look(WAITS, 7, 1.0, 0.55),  # too soon to tell
        Look(Place(4, collective="all_reduce"), 7, 1.0, 0.75),
        Look(Place(3), 7, 1.0, 0.75),  # it waits for no rank
    ],
)
def test_it_does_not_wait(last: Look) -> None:
    standstill = Standstill()
    _see(standstill, 1, *_waiting(0.5), last)
    assert not standstill.holds((1,))


def test_what_goes_on_waits_no_more() -> None:
    standstill = Standstill()
    _see(standstill, 1, *_waiting(1.0), Look(WAITS, 8, 1.0, 1.25))
    assert not standstill.holds((1,))


def test_all_that_are_busy_must_wait() -> None:
    standstill = Standstill()
    _see(standstill, 1, *_waiting(1.0, Place(3, in_backward=True)))
    _see(standstill, 2, *(Look(WAITS, 7, one.at_s, one.at_s) for one in _waiting(1.0)))
    assert standstill.holds((1,))
    assert not standstill.holds((1, 2))
    assert not standstill.holds(())
    assert standstill.waiting[1].where == "backward() (line 3)"
