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
    TELL = "say that they do not end, and how to end them"


_SCHEDULE = (
    (0.0, Step.LOOK),
    (0.1, Step.INTERRUPT),
    (0.3, Step.LOOK),
    (0.4, Step.FREE),
    (0.9, Step.LOOK),
    (1.0, Step.FREE),  # it waits for something else now
    (1.9, Step.LOOK),
    (2.0, Step.TELL),
)
_LOOK_S = 0.5  # how long ranks have to say where they are, before they are interrupted


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

    def due(self, now_s: float, *, are_seen: bool = True) -> list[Step]:
        """Return what is to be done now, each step once.

        Parameters
        ----------
        are_seen
            Whether it is known where the ranks are. If not, they are interrupted a little later,
            and so is what comes after that.
        """
        due = []
        while self._left and now_s - self.at_s >= self._left[0][0]:
            after_s, step = self._left[0]
            if step is Step.INTERRUPT:
                if not are_seen and now_s - self.at_s < _LOOK_S:
                    break
                self.at_s = max(self.at_s, min(now_s, self.at_s + _LOOK_S) - after_s)
            due.append(step)
            del self._left[0]
        return due

    def hasten(self, now_s: float) -> None:
        """Begin now, if it has not begun."""
        if len(self._left) == len(_SCHEDULE):
            self.at_s = min(self.at_s, now_s)
