"""The live curve as a plotly widget; importing this module needs plotly, anywidget, ipywidgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import anywidget  # noqa: F401  plotly needs it for its widgets and does not declare it
import numpy as np
from numpy.typing import NDArray
from plotly.graph_objects import FigureWidget

from ddp_magic.ui import style
from ddp_magic.ui.series import Array, Curve

WIDGET_MIME: Final = "application/vnd.jupyter.widget-view+json"

_AXIS: Final = {
    "gridcolor": style.GRID,
    "zeroline": False,
    "showline": False,
    "ticks": "",
    "automargin": False,
    "title": {"standoff": 8},
}
_LAYOUT: Final = {
    "template": "none",
    "height": style.HEIGHT_PX,
    "autosize": True,
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": style.FONT, "size": style.FONT_SIZE_PX, "color": style.INK},
    "hovermode": "x",
    "xaxis": {**_AXIS, "nticks": 8, "tickformat": ",", "title": {"text": "step", "standoff": 6}},
    "yaxis": {**_AXIS, "nticks": 6},
    "legend": {
        "orientation": "h",
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "bottom",
        "bgcolor": "rgba(0,0,0,0)",
    },
}
_CONFIG: Final = {"displayModeBar": False, "responsive": True, "displaylogo": False}


class Figure:
    """A FigureWidget of curves; an update carries the curves that changed, and nothing else."""

    def __init__(self) -> None:
        self.widget = FigureWidget(layout=_LAYOUT)
        self.widget._config = dict(_CONFIG)

    def bundle(self, otherwise: str) -> dict[str, Any]:
        """Return the MIME bundle that shows the widget, or a text where there are no widgets."""
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return {WIDGET_MIME: view, "text/plain": otherwise}

    def draw(self, curves: Sequence[Curve]) -> None:
        """Show these curves; those known already keep their place in the list."""
        known = len(self.widget.data)
        with self.widget.batch_update():
            for trace, curve in zip(self.widget.data, curves, strict=False):
                trace.update(_coordinates(curve))
        if len(curves) > known:
            self._add(curves, known)

    def close(self) -> None:
        self.widget.close()

    def _add(self, curves: Sequence[Curve], known: int) -> None:
        self.widget.add_traces([_trace(i, curves[i]) for i in range(known, len(curves))])
        several = len(curves) > 1
        self.widget.update_layout(
            showlegend=several,
            margin={
                "l": style.MARGIN_LEFT_PX,
                "r": style.MARGIN_RIGHT_PX,
                "t": style.MARGIN_TOP_PX + several * style.LEGEND_ROW_PX,
                "b": style.MARGIN_BOTTOM_PX,
            },
            yaxis_title_text="" if several else curves[0].name,
        )


def _trace(index: int, curve: Curve) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": curve.name,
        "line": {"color": style.color(index), "width": style.LINE_PX},
        "marker": {"size": style.MARKER_PX},
        "hovertemplate": "step %{x:,}: %{y:.4g}<extra></extra>",
        **_coordinates(curve),
    }


def _coordinates(curve: Curve) -> dict[str, Any]:
    few = len(curve.steps) <= style.MARKERS_UP_TO
    return {
        "x": _steps(curve.steps),
        "y": curve.values.astype(np.float32),
        "mode": "lines+markers" if few else "lines",
    }


def _steps(steps: Array) -> NDArray[Any]:
    """Return the steps in 4 bytes each where they fit."""
    fits = np.abs(steps).max(initial=0) < 2**31
    return steps.astype(np.int32) if fits else steps
