"""The head of a running cell's output: what the ranks do, the curves, Stop and Where.

When the cell ends it folds to the curves, as a picture, and one line.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ddp_magic.core.runstate import RunState
from ddp_magic.ui.controls import Controls
from ddp_magic.ui.head import head_of
from ddp_magic.ui.picture import Picture, StepsAt
from ddp_magic.ui.series import Curve, Series
from ddp_magic.ui.still import still
from ddp_magic.ui.style import number, short
from ddp_magic.ui.views import View, view_for_frontend

_SLOWEST_S: Final = 1.0
_SHARE_OF_TIME: Final = 0.05
_NOTHING: Final = {"text/plain": ""}
_NAMED: Final = 4  # curves that the line of summary tells of


class Panel:
    """The panel of one cell, in the output of the cell that runs.

    Nothing is shown before the first point or state. All methods are to be called from one thread.

    Parameters
    ----------
    clock
        Seconds, increasing.
    controls
        What the panel's buttons do; None: there are none.
    earlier
        Curves of runs of the same cell before, to compare with.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        controls: Controls | None = None,
        earlier: Sequence[Curve] = (),
    ) -> None:
        self._clock = clock
        self._controls = controls
        self._earlier = earlier
        self._state: RunState | None = None
        self._steps_at = StepsAt()
        self._series: dict[str, Series] = {}
        self._view: View | None = None
        self._closed = False
        self._begun_s = 0.0
        self._next_s = 0.0
        self._costs_s: deque[float] = deque(maxlen=3)

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

    def show_state(self, state: RunState) -> None:
        """Show what the ranks do, above the curves."""
        self._state = state
        self._steps_at.add(state.elapsed_s, state.step)
        if not self._closed:
            self._draw_if_due()

    @property
    def curves(self) -> list[Curve]:
        """The curves as far as they have come."""
        return [one.curve() for one in self._series.values()]

    @property
    def summary(self) -> str:
        """One line, such as ``loss 2.31 → 0.05 over 1,200 steps``; empty without points."""
        if not self._series:
            return ""
        series = self._series.values()
        least = min(one.least_step for one in series)
        steps = max(one.greatest_step for one in series) - least + 1
        changes = ", ".join(map(_change, list(series)[:_NAMED]))
        if len(series) > _NAMED:
            changes += f" and {len(series) - _NAMED} more"
        return f"{changes} over {steps:,} step{'s' if steps > 1 else ''}"

    def show_again(self) -> None:
        """Show it anew, where the cell's output was cleared."""
        if self._view is not None and not self._closed:
            self._view.show_again()

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
            view = self._view or view_for_frontend(self._controls)
            view.finish(still(self.curves, caption))
        elif self._view is not None:
            self._view.finish(_NOTHING)

    def close(self) -> None:
        """Finish with what was seen so far, unless finished already."""
        self.finish()

    def _draw_if_due(self) -> None:
        start_s = self._clock()
        if self._view is None:
            self._view, self._begun_s = view_for_frontend(self._controls), start_s
        elif start_s < self._next_s:
            return
        self._view.draw(self._picture())
        end_s = self._clock()
        self._next_s = end_s + self._pause_s(end_s - self._begun_s, end_s - start_s)

    def _pause_s(self, age_s: float, cost_s: float) -> float:
        """Return how long to wait: until there is something new to see, at a bounded cost.

        In a hundredth of its age the curve moves by a hundredth of its width. The least of the last
        three costs counts, so that neither the drawing that makes the widget does, nor the one with
        which the curve's script goes along.
        """
        assert self._view is not None
        self._costs_s.append(cost_s)
        least_s = min(self._costs_s) if len(self._costs_s) == self._costs_s.maxlen else 0.0
        visible_s = min(age_s / 100, _SLOWEST_S)
        return max(self._view.fastest_s, visible_s, least_s / _SHARE_OF_TIME)

    def _picture(self) -> Picture:
        head = head_of(self._state) if self._state is not None else {}
        return Picture(self.curves, self.summary, head, self._steps_at.pairs, self._earlier)


def _change(series: Series) -> str:
    text = f"{short(series.name)} {number(series.first_value)} → {number(series.last_value)}"
    if series.not_finite_since is not None:
        return f"{text} (since step {series.not_finite_since:,})"
    if series.not_finite:
        return f"{text} (not finite in {series.not_finite:,} of {series.count:,})"
    return text
