"""The live curve as a widget that plotly.js draws; importing this needs plotly and anywidget.

This is no ``plotly.graph_objects.FigureWidget``: that one takes over a second to import, and each
leaves 18 MB in the page for as long as that is open. It also sends its changes as messages, so a
page that is loaded again knows nothing of them; here the model's state is the whole picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import anywidget
import traitlets
from plotly.offline import get_plotlyjs

from ddp_magic.ui import style
from ddp_magic.ui.series import Curve

_AXIS: Final = {
    "gridcolor": style.GRID,
    "zeroline": False,
    "showline": False,
    "ticks": "",
    "nticks": 8,
    "ticklabelstandoff": 5,
    "automargin": False,
}
_LAYOUT: Final = {
    "autosize": True,
    "uirevision": "live",  # a zoom outlives the next update
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": style.FONT, "size": style.FONT_SIZE_PX, "color": style.INK},
    "hovermode": "x",
    "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
}


class Figure(anywidget.AnyWidget):
    """Curves in the page."""

    # Its text: what anywidget makes of a path keeps every widget alive, to tell it of changes.
    _esm = Path(__file__).with_name("live.js").read_text(encoding="utf-8")
    _plotly_js = traitlets.Unicode().tag(sync=True)
    _figure_layout = traitlets.Dict().tag(sync=True)
    _traces: traitlets.List[Any] = traitlets.List().tag(sync=True)

    def __init__(self, curves: Sequence[Curve]) -> None:
        super().__init__(
            _plotly_js=get_plotlyjs(), _figure_layout=_layout(curves), _traces=_traces(curves)
        )

    def draw(self, curves: Sequence[Curve]) -> None:
        """Show these curves; they are sent in one message, about 20 kB for each."""
        with self.hold_sync():
            self._figure_layout = _layout(curves)
            self._traces = _traces(curves)

    def close(self) -> None:
        """Take the widget, and the box model that ipywidgets gives it, out of kernel and page."""
        self.layout.close()
        super().close()


def _layout(curves: Sequence[Curve]) -> dict[str, Any]:
    names = [curve.name for curve in curves]
    top = style.MARGIN_TOP_PX + style.legend_height(names)
    return {
        **_LAYOUT,
        "height": top + style.PLOT_HEIGHT_PX + style.MARGIN_BOTTOM_PX,
        "margin": {
            "l": style.MARGIN_LEFT_PX,
            "r": style.MARGIN_RIGHT_PX + style.HTML_PADDING_PX,
            "t": top,
            "b": style.MARGIN_BOTTOM_PX,
        },
        "showlegend": len(names) > 1,
        "xaxis": {**_AXIS, **_title("step"), "showgrid": False, "tickformat": ","},
        "yaxis": {**_AXIS, **_title(names[0] if len(names) == 1 else ""), "tickformat": "~g"},
    }


def _title(text: str) -> dict[str, Any]:
    return {"title": {"text": text, "font": {"size": style.FONT_SIZE_PX}}}


def _traces(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    return [_trace(index, curve) for index, curve in enumerate(curves)]


def _trace(index: int, curve: Curve) -> dict[str, Any]:
    few = len(curve.steps) <= style.MARKERS_UP_TO
    return {
        "type": "scatter",
        "name": curve.name,
        "mode": "lines+markers" if few else "lines",
        "line": {"color": style.color(index), "width": style.LINE_PX},
        "marker": {"size": style.MARKER_PX},
        "hovertemplate": "step %{x:,}: %{y:.4g}<extra></extra>",
        "steps": curve.steps.astype("<f8").tobytes(),
        "values": curve.values.astype("<f4").tobytes(),
    }
