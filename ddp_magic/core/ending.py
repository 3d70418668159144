"""What is done, and when, to ranks that do not end a cell which is over: a schedule.

A cell is over when it is stopped, when its time is, when a rank has failed or died. Its ranks are
interrupted, then freed from what they wait for, then told of.
"""

from __future__ import annotations

from enum import Enum


class Step(Enum):
    """One thing to do."""

    LOOK = "see where the ranks are"
    INTERRUPT = "press Ctrl-C on them"
    FREE = "end what they wait for in compiled code"
    DUMP = "have those that do not answer write where they are"
    TELL = "say that they do not end, and how to end them"


_PATIENCE_S = 0.2  # how much later that is if not all ranks have answered yet
_FREED_S = 1.0
_SCHEDULE = (
    (0.0, Step.LOOK),
    (0.1, Step.INTERRUPT),
    (0.3, Step.LOOK),
    (0.4, Step.FREE),
    (0.9, Step.LOOK),
    (_FREED_S, Step.FREE),  # it waits for something else now
    (1.7, Step.LOOK),
    (1.9, Step.DUMP),
    (2.0, Step.TELL),
)


class Ending:
    """The end of one cell.

    Parameters
    ----------
    at_s
        When it begins.
    """

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s
        self._left = list(_SCHEDULE)

    def due(self, now_s: float, answered: bool) -> list[Step]:
        """Return what is to be done now, each step once.

        Parameters
        ----------
        answered
            Whether all ranks have answered the last look.
        """
        passed_s = now_s - self.at_s - (0 if answered or self._is_new else _PATIENCE_S)
        due = [step for after_s, step in self._left if passed_s >= after_s]
        del self._left[: len(due)]
        return due

    def hasten(self, now_s: float) -> None:
        """Begin now, if it has not begun."""
        if self._is_new:
            self.at_s = min(self.at_s, now_s)

    def tell_later(self, now_s: float) -> None:
        """Look again in a moment: there was nothing to tell."""
        self.at_s = now_s - _FREED_S
        self._left = [(after_s, step) for after_s, step in _SCHEDULE if after_s > _FREED_S]

    @property
    def _is_new(self) -> bool:
        return len(self._left) == len(_SCHEDULE)
