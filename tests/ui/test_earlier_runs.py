"""Curves that are kept to compare the next run with."""

from __future__ import annotations

import numpy as np

from ddp_magic.ui import earlier_runs
from ddp_magic.ui.series import Curve


def _curve(points: int) -> Curve:
    return Curve("loss", np.arange(points, dtype=float), np.ones(points))


def test_the_last_runs_of_a_cell_are_kept_at_less_detail() -> None:
    for points in (10, 20, 30, 5000, 50):
        earlier_runs.keep("a cell", [_curve(points)])
    lengths = [len(curve.steps) for curve in earlier_runs.of("a cell")]
    assert lengths == [20, 30, 300, 50]
    assert earlier_runs.of("another cell") == []


def test_what_has_no_cell_or_no_curve_is_not() -> None:
    earlier_runs.keep("", [_curve(3)])
    earlier_runs.keep("empty", [])
    assert earlier_runs.of("") == earlier_runs.of("empty") == []
