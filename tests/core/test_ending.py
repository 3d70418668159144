"""What is done to ranks that do not end a cell which is over."""

from __future__ import annotations

from ddp_magic.core.ending import Ending, Step


def test_ranks_are_looked_at_interrupted_freed_and_told_of() -> None:
    ending = Ending(10.0)
    assert ending.due(9.9) == []
    assert ending.due(10.0) == [Step.LOOK]
    assert ending.due(10.0) == []
    assert ending.due(10.2) == [Step.INTERRUPT]
    rest = ending.due(60.0)
    assert rest[:2] == [Step.LOOK, Step.FREE]
    assert rest[-1] is Step.TELL
    assert ending.due(99.0) == []


def test_ranks_are_interrupted_when_it_is_known_where_they_are() -> None:
    ending = Ending(10.0)
    assert ending.due(10.2, are_seen=False) == [Step.LOOK]
    assert ending.due(10.3, are_seen=True) == [Step.INTERRUPT]
    assert ending.due(10.4) == []  # what comes next comes as much later
    assert ending.due(10.52) == [Step.LOOK]


def test_ranks_that_do_not_say_where_they_are_are_interrupted_all_the_same() -> None:
    ending = Ending(10.0)
    assert ending.due(10.49, are_seen=False) == [Step.LOOK]
    assert ending.due(10.55, are_seen=False) == [Step.INTERRUPT]


def test_stop_does_not_wait_for_the_grace_that_a_failure_leaves() -> None:
    ending = Ending(11.0)
    ending.hasten(10.2)
    assert ending.due(10.2) == [Step.LOOK]


def test_an_end_that_has_begun_is_not_begun_again() -> None:
    ending = Ending(10.0)
    ending.due(10.15)
    ending.hasten(10.2)
    assert ending.due(10.25) == []
