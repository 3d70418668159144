"""Whether ranks wait in vain, as two looks at them show."""

from __future__ import annotations

import pytest

from ddp_magic.core.standstill import Look, Standstill
from ddp_magic.core.where import Place

WAITS = Place(3, collective="all_reduce")


@pytest.mark.parametrize(
    ("second", "waits"),
    [
        (Look(WAITS, 7, 1.01, 0.5), True),
        (Look(WAITS, 8, 1.01, 0.5), False),  # it has made another collective
        (Look(WAITS, 7, 1.4, 0.5), False),  # it computes
        (Look(WAITS, 7, 1.0, 0.05), False),  # too soon to tell
        (Look(Place(4, collective="all_reduce"), 7, 1.0, 0.5), False),
    ],
)
def test_it_takes_two_looks(second: Look, waits: bool) -> None:
    standstill = Standstill()
    standstill.see(1, Look(WAITS, 7, 1.0, 0.0))
    assert not standstill.holds((1,))
    standstill.see(1, second)
    assert standstill.holds((1,)) is waits


def test_what_computes_does_not_wait() -> None:
    standstill = Standstill()
    for at_s in (0.0, 0.5, 1.0):
        standstill.see(0, Look(Place(3), 7, 1.0, at_s))
    assert not standstill.holds((0,))


def test_all_that_are_busy_must_wait() -> None:
    standstill = Standstill()
    for at_s in (0.0, 0.5):
        standstill.see(1, Look(Place(3, in_backward=True), 7, 1.0, at_s))
        standstill.see(2, Look(WAITS, 7, at_s, at_s))
    assert standstill.holds((1,))
    assert not standstill.holds((1, 2))
    assert not standstill.holds(())
    assert standstill.waiting[1].where == "backward() (line 3)"
