"""A curve of any length in bounded memory, at the detail that a screen can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddp_magic.ui import style

Array = NDArray[np.float64]

_STEP, _VALUE, _CUT = range(3)  # columns of a point; cut: not joined to the point before it
_MAX_BINS: Final = 1024
_INFINITE: Final = 3e38  # what the page, which gets 32 bits of each, cannot hold


@dataclass(frozen=True)
class Curve:
    """What is drawn of a series; NaN in `values` is a gap in the line.

    Attributes
    ----------
    name
        The loss or metric.
    steps, values
        Float arrays of shape ``[points]``.
    """

    name: str
    steps: Array
    values: Array

    @property
    def is_short(self) -> bool:
        """Whether each of its points is to be seen."""
        return int(np.isfinite(self.values).sum()) <= style.MARKERS_UP_TO


class Series:
    """All points of one loss, kept as the least and the greatest of each run of points.

    Every run (a bin) holds equally many points, one at first; whenever the bins are too many,
    neighbours are merged. Every extreme value thus stays in the picture, and memory and the
    number of points drawn are bounded however long the run.

    A value that is not finite, and a step smaller than the one before it, break the line.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.first_value = math.nan
        self.last_value = math.nan
        self.least_step = 0
        self.greatest_step = 0
        self.count = 0
        self.not_finite = 0  # of them
        self.not_finite_since: int | None = None  # up to the last
        self._last_step: int | None = None
        self._stride = 1
        self._first: Array = np.empty((0, 3))
        self._bins: Array = np.empty((0, 2, 3))
        self._tail: Array = np.empty((0, 3))

    def extend(self, points: Sequence[tuple[int, float]]) -> None:
        """Append ``(step, value)`` pairs in the order in which they happened."""
        if not points:
            return
        rows = self._rows(points)
        if self._last_step is None:
            self._first = rows[:1]
        self._note(points)
        self._tail = np.concatenate((self._tail, rows))
        whole = len(self._tail) // self._stride * self._stride
        filled = self._tail[:whole].reshape(-1, self._stride, 3)
        self._bins = np.concatenate((self._bins, _extremes(filled)))
        self._tail = self._tail[whole:]
        while len(self._bins) > _MAX_BINS:
            self._merge()

    def curve(self) -> Curve:
        """Return what is to be drawn: at most about 2,050 points, and gaps."""
        rest = _extremes(self._tail[np.newaxis]) if len(self._tail) else self._tail
        inner = self._bins.reshape(-1, 3), rest.reshape(-1, 3)
        rows = np.concatenate((self._first, *inner, self._tail[-1:]))
        rows = rows[_differs_from_the_one_before(rows)]
        cuts = np.flatnonzero(rows[:, _CUT])
        return Curve(
            self.name,
            np.insert(rows[:, _STEP], cuts, rows[cuts, _STEP]),
            np.insert(rows[:, _VALUE], cuts, np.nan),
        )

    def _rows(self, points: Sequence[tuple[int, float]]) -> Array:
        rows = np.zeros((len(points), 3))
        rows[:, :_CUT] = points
        rows[~(np.abs(rows[:, _VALUE]) < _INFINITE), _VALUE] = np.nan
        before = rows[0, _STEP] if self._last_step is None else self._last_step
        goes_back = np.diff(rows[:, _STEP], prepend=before) < 0
        rows[:, _CUT] = goes_back | np.isnan(rows[:, _VALUE])
        return rows

    def _note(self, points: Sequence[tuple[int, float]]) -> None:
        """Keep what the line of summary says."""
        steps = [step for step, _ in points]
        if self._last_step is None:
            self.least_step, self.first_value = points[0]
            self.greatest_step = steps[0]
        self.least_step = min(self.least_step, *steps)
        self.greatest_step = max(self.greatest_step, *steps)
        self._last_step, self.last_value = points[-1]
        self.count += len(points)
        for step, value in points:
            if math.isfinite(value):
                self.not_finite_since = None
                continue
            self.not_finite += 1
            if self.not_finite_since is None:
                self.not_finite_since = step

    def _merge(self) -> None:
        """Halve the number of bins; an odd last one stays as it is."""
        if len(self._bins) % 2:
            self._bins = np.concatenate((self._bins, self._bins[-1:]))
        self._bins = _extremes(self._bins.reshape(-1, 4, 3))
        self._stride *= 2


def _extremes(points: Array) -> Array:
    """Return the least and the greatest point of each row, in the order in which they came.

    Parameters
    ----------
    points
        Shape ``[bins, width, 3]``; the result's is ``[bins, 2, 3]``. A cut within a row becomes
        one before its first point.
    """
    values = points[..., _VALUE]
    low = np.where(np.isnan(values), np.inf, values).argmin(axis=1)
    high = np.where(np.isnan(values), -np.inf, values).argmax(axis=1)
    order = np.sort(np.stack((low, high), axis=1), axis=1)
    kept = np.take_along_axis(points, order[..., np.newaxis], axis=1)
    kept[:, 0, _CUT] = points[..., _CUT].max(axis=1)
    kept[:, 1, _CUT] = 0
    return kept


def _differs_from_the_one_before(rows: Array) -> NDArray[np.bool_]:
    same = (np.diff(rows[:, :_CUT], axis=0) == 0).all(axis=1)
    return np.concatenate(([True], ~same))
