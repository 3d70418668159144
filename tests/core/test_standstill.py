"""Whether ranks wait in vain for what is not known, as several looks at them show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddp_magic.core.deadlock import Look, Op
from ddp_magic.core.standstill import Standstill
from ddp_magic.core.where import Place

WAITS = Place(3, collective="recv")


def _look(
    place: Place = WAITS,
    count: int = 7,
    cpu_s: float = 1.0,
    at_s: float = 0.0,
    ops: tuple[Op, ...] = (),
) -> Look:
    return Look(place, {"0": count}, ops, cpu_s=cpu_s, at_s=at_s)


def _see(standstill: Standstill, rank: int, *looks: Look) -> None:
    for look in looks:
        standstill.see(rank, look)


def _waiting(until_s: float, place: Place = WAITS, ops: tuple[Op, ...] = ()) -> list[Look]:
    times_s = [n * 0.25 for n in range(int(until_s / 0.25) + 1)]
    return [_look(place, at_s=at_s, ops=ops) for at_s in times_s]


def test_it_takes_several_looks() -> None:
    standstill = Standstill()
    _see(standstill, 1, *_waiting(0.5))
    assert not standstill.holds((1,))
    _see(standstill, 1, _look(cpu_s=1.01, at_s=0.75))
    assert standstill.holds((1,))


@pytest.mark.parametrize(
    "last",
    [
        _look(count=8, cpu_s=1.01, at_s=0.75),  # it has made another collective
        _look(cpu_s=1.4, at_s=0.75),  # it computes, or would
        _look(cpu_s=0.2, at_s=0.75),  # a thread of its has ended, and what that had used is gone
        _look(at_s=0.55),  # too soon to tell
        _look(Place(4, collective="recv"), at_s=0.75),
        _look(Place(3), at_s=0.75),  # it waits for no rank
    ],
)
def test_it_does_not_wait(last: Look) -> None:
    standstill = Standstill()
    _see(standstill, 1, *_waiting(0.5), last)
    assert not standstill.holds((1,))


def test_what_goes_on_waits_no_more() -> None:
    standstill = Standstill()
    _see(standstill, 1, *_waiting(1.0), _look(count=8, at_s=1.25))
    assert not standstill.holds((1,))


def test_all_that_are_busy_must_wait() -> None:
    standstill = Standstill()
    _see(standstill, 1, *_waiting(1.0, Place(3, in_backward=True)))
    _see(standstill, 2, *(_look(cpu_s=one.at_s, at_s=one.at_s) for one in _waiting(1.0)))
    assert standstill.holds((1,))
    assert not standstill.holds((1, 2))
    assert not standstill.holds(())
    assert standstill.waiting[1].where == "backward() (line 3)"


def test_where_it_is_known_what_all_wait_for_that_decides() -> None:
    standstill = Standstill()
    known = (Op("0", 7, (0, 1), "all_reduce"),)
    _see(standstill, 1, *_waiting(1.0, ops=known))
    assert not standstill.holds((1,))
    _see(standstill, 2, *_waiting(1.0))
    assert standstill.holds((1, 2))


def test_what_is_known_and_does_not_come_for_long_will_not_come() -> None:
    standstill = Standstill()
    _see(standstill, 1, *_waiting(4.0, ops=(Op("0", 7, (0, 1), "all_reduce"),)))
    assert standstill.holds((1,))


def test_another_thread_may_do_what_is_waited_for() -> None:
    standstill = Standstill()
    _see(standstill, 1, *(replace(look, has_threads=True) for look in _waiting(9.0)))
    assert not standstill.holds((1,))
