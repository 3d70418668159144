"""What is done to ranks that do not end a cell which is over."""

from __future__ import annotations

from ddp_magic.core.ending import Ending, Step


def test_ranks_are_looked_at_interrupted_freed_and_told_of() -> None:
    ending = Ending(10.0)
    assert ending.due(9.9, True) == []
    assert ending.due(10.0, True) == [Step.LOOK]
    assert ending.due(10.0, True) == []
    assert ending.due(10.2, True) == [Step.INTERRUPT]
    rest = ending.due(60.0, True)
    assert rest[:2] == [Step.LOOK, Step.FREE]
    assert rest[-1] is Step.TELL
    assert ending.due(99.0, True) == []


def test_stop_does_not_wait_for_the_grace_that_a_failure_leaves() -> None:
    ending = Ending(11.0)
    ending.hasten(10.2)
    assert ending.due(10.2, True) == [Step.LOOK]


def test_an_end_that_has_begun_is_not_begun_again() -> None:
    ending = Ending(10.0)
    ending.due(10.15, True)
    ending.hasten(10.2)
    assert ending.due(10.25, True) == []


def test_ranks_that_have_not_answered_are_waited_for_a_little() -> None:
    ending = Ending(10.0)
    assert ending.due(10.0, False) == [Step.LOOK]
    assert ending.due(10.2, False) == []
    assert ending.due(10.35, False) == [Step.INTERRUPT]


def test_what_there_is_nothing_to_tell_of_is_looked_at_again() -> None:
    ending = Ending(10.0)
    assert ending.due(12.1, True)[-1] is Step.TELL
    ending.tell_later(12.1)
    assert ending.due(12.2, True) == []
    assert ending.due(13.2, True) == [Step.LOOK, Step.DUMP, Step.TELL]
