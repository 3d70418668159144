"""Curves of any length in bounded memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_magic.ui.series import Series

MOST_DRAWN = 2100


def _series(points: list[tuple[int, float]], batch: int = 1000) -> Series:
    series = Series("loss")
    for start in range(0, len(points), batch):
        series.extend(points[start : start + batch])
    return series


def test_short_curve_is_drawn_as_it_came() -> None:
    points = [(0, 3.0), (1, 1.0), (2, 2.0), (5, 2.0)]
    curve = _series(points, batch=1).curve()
    assert list(zip(curve.steps, curve.values, strict=True)) == points


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5000),
    batch=st.integers(1, 3000),
)
def test_extremes_ends_and_order_survive(values: list[float], batch: int) -> None:
    curve = _series(list(enumerate(values)), batch).curve()
    assert curve.values.min() == min(values)
    assert curve.values.max() == max(values)
    assert (np.diff(curve.steps) > 0).all()
    assert (curve.steps[0], curve.values[0]) == (0, values[0])
    assert (curve.steps[-1], curve.values[-1]) == (len(values) - 1, values[-1])
    assert all(values[int(s)] == v for s, v in zip(curve.steps, curve.values, strict=True))
    assert len(curve.steps) <= MOST_DRAWN


def test_a_million_points_draw_no_more_than_a_thousand() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=1000)
    series, drawn = Series("loss"), []
    for block in range(1000):
        series.extend([(1000 * block + i, float(v)) for i, v in enumerate(noise)])
        drawn.append(len(series.curve().steps))
    assert max(drawn) <= MOST_DRAWN
    assert drawn[-1] > 500
    curve = series.curve()
    largest_hole = np.diff(curve.steps).max()
    assert largest_hole < 10_000  # the old points are as dense as the new


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e305])
def test_what_is_not_finite_is_a_gap(value: float) -> None:
    curve = _series([(0, 1.0), (1, value), (2, 3.0)]).curve()
    assert np.isfinite(curve.values[[0, -1]]).all()
    assert np.isnan(curve.values[1:-1]).all()


def test_one_gap_in_many_points_is_still_a_gap() -> None:
    points = [(i, math.nan if i == 70_000 else 1.0 + i % 7) for i in range(100_000)]
    curve = _series(points).curve()
    gaps = curve.steps[np.isnan(curve.values)]
    assert gaps.size == 1
    assert abs(gaps[0] - 70_000) < 500


def test_steps_that_start_again_break_the_line() -> None:
    curve = _series([(0, 1.0), (1, 2.0), (0, 3.0), (1, 4.0)], batch=2).curve()
    assert curve.steps.tolist() == [0, 1, 0, 0, 1]
    assert np.isnan(curve.values).tolist() == [False, False, True, False, False]


def test_nothing_but_nan() -> None:
    curve = _series([(i, math.nan) for i in range(5000)]).curve()
    assert np.isnan(curve.values).all()
    assert len(curve.steps) <= 2 * MOST_DRAWN


def test_what_the_summary_needs() -> None:
    series = _series([(3, 2.5), (10, math.nan), (11, math.inf)])
    assert (series.least_step, series.greatest_step) == (3, 11)
    assert (series.first_value, series.last_value) == (2.5, math.inf)
    assert series.not_finite_since == 10
    series.extend([(12, 1.0)])
    assert series.not_finite_since is None
    assert (series.not_finite, series.count) == (2, 4)


def test_what_the_page_cannot_hold_is_a_gap() -> None:
    values = _series([(0, 1.0), (1, 1e39), (2, -1e200)]).curve().values
    assert values[np.isfinite(values)].tolist() == [1.0]
