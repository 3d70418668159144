"""The loss curve of a cell: alive while the cell runs, a picture in the saved notebook after."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ddp_magic.ui.series import Curve, Series
from ddp_magic.ui.still import still
from ddp_magic.ui.style import number
from ddp_magic.ui.views import View, view_for_frontend

_SLOWEST_S: Final = 1.0
_SHARE_OF_TIME: Final = 0.05
_NAMED: Final = 4  # curves that the line of summary tells of


class LossChart:
    """The curves of one cell, drawn in the output of the cell that runs.

    Nothing is shown before the first point. All methods are to be called from one thread.

    Parameters
    ----------
    clock
        Seconds, increasing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._series: dict[str, Series] = {}
        self._view: View | None = None
        self._closed = False
        self._begun_s = 0.0
        self._next_s = 0.0
        self._cost_s = 0.0

    def add(self, points: Mapping[str, Sequence[tuple[int, float]]]) -> None:
        """Append points, and draw if it is time to.

        Parameters
        ----------
        points
            ``{name: [(step, value), ...]}``. May be empty: what came earlier and is not drawn
            yet may be drawn now.
        """
        for name, pairs in points.items():
            if pairs:
                self._series.setdefault(name, Series(name)).extend(pairs)
        if self._series and not self._closed:
            self._draw_if_due()

    @property
    def summary(self) -> str:
        """One line, such as ``loss 2.31 → 0.05 over 1,200 steps``; empty without points."""
        if not self._series:
            return ""
        series = self._series.values()
        first = min(one.first_step for one in series)
        steps = max(one.greatest_step for one in series) - first + 1
        changes = ", ".join(map(_change, list(series)[:_NAMED]))
        if len(series) > _NAMED:
            changes += f" and {len(series) - _NAMED} more"
        return f"{changes} over {steps:,} step{'s' if steps > 1 else ''}"

    def finish(self, note: str = "") -> None:
        """Put a picture in the place of the live curve, for good.

        Parameters
        ----------
        note
            What the line beneath it says after `summary`, such as ``12.3 s on 2 ranks``.
        """
        if self._closed:
            return
        self._closed = True
        if self._series:
            caption = " · ".join(filter(None, (self.summary, note)))
            view = self._view or view_for_frontend()
            view.finish(still(self._curves(), caption))

    def close(self) -> None:
        """Finish with what was seen so far, unless finished already."""
        self.finish()

    def _draw_if_due(self) -> None:
        start_s = self._clock()
        if self._view is None:
            self._view, self._begun_s = view_for_frontend(), start_s
        elif start_s < self._next_s:
            return
        self._view.draw(self._curves(), self.summary)
        end_s = self._clock()
        self._next_s = end_s + self._pause_s(end_s - self._begun_s, end_s - start_s)

    def _pause_s(self, age_s: float, cost_s: float) -> float:
        """Return how long to wait: until there is something new to see, at a bounded cost.

        In a hundredth of its age the curve moves by a hundredth of its width. The lesser of the
        last two costs counts, so that the first drawing, which makes the widget, does not.
        """
        assert self._view is not None
        lesser_s, self._cost_s = min(cost_s, self._cost_s), cost_s
        visible_s = min(age_s / 100, _SLOWEST_S)
        return max(self._view.fastest_s, visible_s, lesser_s / _SHARE_OF_TIME)

    def _curves(self) -> list[Curve]:
        return [one.curve() for one in self._series.values()]


def _change(series: Series) -> str:
    text = f"{series.name} {number(series.first_value)} → {number(series.last_value)}"
    since = series.not_finite_since
    return text if since is None else f"{text} (since step {since:,})"
