"""What the page is sent of a panel."""

from __future__ import annotations

import numpy as np

from ddp_magic.ui.figure import _state
from ddp_magic.ui.picture import Picture
from ddp_magic.ui.series import Curve


def _curves(*names: str) -> list[Curve]:
    return [Curve(name, np.arange(3.0), np.ones(3)) for name in names]


def test_names_are_no_markup() -> None:
    state = _state(Picture(_curves("<b>a</b> & b")))
    assert state["_traces"][0]["name"] == "&lt;b&gt;a&lt;/b&gt; &amp; b"
    assert state["_figure_layout"]["yaxis"]["title"]["text"] == "&lt;b&gt;a&lt;/b&gt; &amp; b"


def test_a_legend_of_many_says_how_many_more() -> None:
    traces = _state(Picture(_curves(*map(str, range(200)))))["_traces"]
    assert sum(trace.get("showlegend", True) for trace in traces) == 13
    assert traces[-1]["name"] == "and 188 more"


def test_points_are_shown_where_there_are_few() -> None:
    gaps = Curve("loss", np.arange(80.0), np.where(np.arange(80) % 2, np.nan, 1.0))
    assert _state(Picture([gaps]))["_traces"][0]["mode"] == "lines+markers"
