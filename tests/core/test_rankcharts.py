"""The ranks of a cell side by side."""

from __future__ import annotations

from ddp_magic.core.rankcharts import RankCharts
from ddp_magic.core.runstate import StepTime


def test_a_straggler_is_who_needs_long_itself() -> None:
    times = {0: StepTime(0.02, 0.01), 1: StepTime(0.02, 0.001), 2: StepTime(0.02, 0.009)}
    charts = RankCharts({}, times, {})
    assert charts.stragglers == (1,)
    assert charts.headline == "rank 1 made the others wait"
    assert charts.lines()[1] == "rank 1: 20 ms a step, 1 ms of it waiting (straggler)"


def test_where_waiting_is_not_known_nobody_is_blamed() -> None:
    charts = RankCharts({}, {0: StepTime(0.02), 1: StepTime(0.5)}, {})
    assert charts.stragglers == ()
    assert charts.lines()[0] == "rank 0: 20 ms a step"


def test_in_words() -> None:
    losses = {"loss": {1: [(1, 2.0), (2, 0.5)], 0: [(2, 0.25)], 2: []}}
    told = str(RankCharts(losses, {}, {3: "rank 3: has died"})).splitlines()
    assert told[1:3] == ["loss: rank 0 0.25, rank 1 0.5", "rank 3: has died"]
    assert str(RankCharts({}, {}, {})).startswith("the last cell has trained nothing")
