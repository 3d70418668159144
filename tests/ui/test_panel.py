"""When a panel draws, and what it says."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from ddp_magic.core.runstate import Doing, RankState, RunState
from ddp_magic.ui import panel as panel_module
from ddp_magic.ui.panel import Panel
from ddp_magic.ui.picture import Picture


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class RecordingView:
    """Notes what is drawn; each drawing takes `cost_s`."""

    clock: Clock
    fastest_s: float = 0.2
    cost_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)
    finished: list[Mapping[str, Any]] = field(default_factory=list)
    picture: Picture = field(default_factory=lambda: Picture(()))
    times_shown: int = 0

    def draw(self, picture: Picture) -> None:
        self.times_s.append(self.clock.now_s)
        self.drawn.append(sum(len(curve.steps) for curve in picture.curves))
        self.picture = picture
        self.clock.now_s += self.cost_s

    def show_again(self) -> None:
        self.times_shown += 1

    def finish(self, bundle: Mapping[str, Any]) -> None:
        self.finished.append(bundle)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def view(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> RecordingView:
    view = RecordingView(clock)
    monkeypatch.setattr(panel_module, "view_for_frontend", lambda _: view)
    return view


def _run(chart: Panel, clock: Clock, seconds: float, every_s: float = 0.1) -> None:
    for step in range(round(seconds / every_s)):
        chart.add({"loss": [(step, 1.0)]})
        clock.now_s += every_s


def test_no_point_no_panel(clock: Clock, view: RecordingView) -> None:
    chart = Panel(clock)
    chart.add({})
    chart.add({"loss": []})
    chart.finish("1 s")
    assert chart.summary == ""
    assert not view.drawn
    assert not view.finished


def test_first_point_is_drawn_at_once_and_the_last_in_the_end(
    clock: Clock, view: RecordingView
) -> None:
    chart = Panel(clock)
    chart.add({"loss": [(0, 2.0)]})
    chart.add({"loss": [(1, 1.0)]})
    assert view.drawn == [1]
    chart.finish("3 s on 2 ranks")
    assert view.finished[0]["text/plain"] == "loss 2 → 1 over 2 steps · 3 s on 2 ranks"


def test_points_that_wait_are_drawn_by_an_empty_add(clock: Clock, view: RecordingView) -> None:
    chart = Panel(clock)
    chart.add({"loss": [(0, 2.0)]})
    chart.add({"loss": [(1, 1.0)]})
    clock.now_s += 1.0
    chart.add({})
    assert view.drawn == [1, 2]


def test_drawing_slows_down_to_once_a_second(clock: Clock, view: RecordingView) -> None:
    _run(Panel(clock), clock, 300)
    early = [t for t in view.times_s if t < 110]
    late = [t for t in view.times_s if t > 300]
    assert 30 <= len(early) <= 51
    assert 85 <= len(late) <= 101


def test_costly_drawing_takes_a_twentieth_of_the_time(clock: Clock, view: RecordingView) -> None:
    view.cost_s = 0.2
    _run(Panel(clock), clock, 100)
    assert len(view.drawn) * view.cost_s < 0.06 * 120


def test_finish_and_close_once(clock: Clock, view: RecordingView) -> None:
    chart = Panel(clock)
    chart.add({"loss": [(0, 2.0)]})
    chart.close()
    chart.finish("late")
    chart.close()
    chart.add({"loss": [(1, 1.0)]})
    assert [bundle["text/plain"] for bundle in view.finished] == ["loss 2 → 2 over 1 step"]
    assert view.drawn == [1]


def test_summary_of_several_and_of_what_blew_up(clock: Clock, view: RecordingView) -> None:
    chart = Panel(clock)
    chart.add({"loss": [(0, 2.31), (1199, 0.05)], "accuracy": [(600, 0.1), (1199, 0.97)]})
    assert chart.summary == "loss 2.31 → 0.05, accuracy 0.1 → 0.97 over 1,200 steps"
    chart.add({"c": [(0, 1.0)], "d": [(0, 1.0)], "e": [(0, 1.0)], "f": [(0, 1.0)]})
    assert chart.summary.endswith("d 1 → 1 and 2 more over 1,200 steps")
    chart = Panel(clock)
    chart.add({"loss": [(0, 2.0), (1, math.nan), (2, math.inf)]})
    assert chart.summary == "loss 2 → inf (since step 1) over 3 steps"


def test_import_is_light() -> None:
    heavy = "plotly", "ipywidgets", "anywidget", "ddp_magic.ui.figure"
    code = (
        "import sys, ddp_magic; assert 'ddp_magic.ui' not in sys.modules; "
        f"import ddp_magic.ui.panel; print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_jupyter_the_summary_is_printed(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    chart = Panel(clock)
    chart.add({"loss": [(0, 2.0), (1, 1.0)]})
    assert capsys.readouterr().out == ""
    chart.finish()
    assert capsys.readouterr().out == "loss 2 → 1 over 2 steps\n"


def test_states_are_shown_before_there_is_a_curve_and_leave_nothing_without_one(
    clock: Clock, view: RecordingView
) -> None:
    panel = Panel(clock)
    panel.show_state(RunState({0: RankState(Doing.RUNS)}, step=3, elapsed_s=1.0))
    assert view.drawn == [0]
    assert view.picture.head["chips"][0]["text"] == "0 ▸ runs"
    assert view.picture.steps_at == [(1.0, 3)]
    panel.finish("3 s")
    assert view.finished == [{"text/plain": ""}]


@pytest.mark.parametrize(
    ("points", "summary"),
    [
        ([(9, 1.0), (3, 2.0)], "loss 1 → 2 over 7 steps"),
        ([(1, 2.0), (2, math.nan), (3, 1.0)], "loss 2 → 1 (not finite in 1 of 3) over 3 steps"),
    ],
)
def test_the_summary_of_odd_curves(
    clock: Clock, view: RecordingView, points: list[tuple[int, float]], summary: str
) -> None:
    panel = Panel(clock)
    panel.add({"loss": points})
    assert panel.summary == summary


def test_a_long_name_is_cut(clock: Clock, view: RecordingView) -> None:
    panel = Panel(clock)
    panel.add({"x" * 100: [(1, 1.0)]})
    assert panel.summary == f"{'x' * 39}… 1 → 1 over 1 step"


def test_it_is_shown_again_as_long_as_it_is_there(clock: Clock, view: RecordingView) -> None:
    panel = Panel(clock)
    panel.show_again()
    panel.add({"loss": [(1, 1.0)]})
    panel.show_again()
    panel.finish()
    panel.show_again()
    assert view.times_shown == 1
