"""The panel as a widget, its curves drawn by plotly.js; importing this needs plotly and anywidget.

This is no ``plotly.graph_objects.FigureWidget``: that one takes over a second to import, and each
leaves 18 MB in the page for as long as that is open. It also sends its changes as messages, so a
page that is loaded again knows nothing of them; here the model's state is the whole picture.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import anywidget
import traitlets
from plotly.offline import get_plotlyjs

from ddp_magic.ui import style
from ddp_magic.ui.controls import Controls
from ddp_magic.ui.picture import Picture
from ddp_magic.ui.series import Curve

_FILES: Final = Path(__file__).parent
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
    """The panel in the page.

    Parameters
    ----------
    controls
        What its buttons do; None: there are none.
    """

    # Its text: what anywidget makes of a path keeps every widget alive, to tell it of changes.
    _esm = _FILES.joinpath("panel.js").read_text(encoding="utf-8")
    _css = _FILES.joinpath("panel.css").read_text(encoding="utf-8")
    _plotly_js = traitlets.Unicode().tag(sync=True)
    _figure_layout = traitlets.Dict().tag(sync=True)
    _traces: traitlets.List[Any] = traitlets.List().tag(sync=True)
    _earlier: traitlets.List[Any] = traitlets.List().tag(sync=True)
    _steps_at: traitlets.List[Any] = traitlets.List().tag(sync=True)
    _head = traitlets.Dict().tag(sync=True)
    _has_controls = traitlets.Bool().tag(sync=True)
    _told = traitlets.Unicode().tag(sync=True)  # the answer to Where

    def __init__(self, picture: Picture, controls: Controls | None = None) -> None:
        self._controls = controls
        super().__init__(_has_controls=controls is not None, **_state(picture))
        self.on_msg(self._click)
        self._route()

    def draw(self, picture: Picture) -> None:
        """Show this; it is sent in one message, about 20 kB for each curve."""
        state = _state(picture)
        with self.hold_sync():
            for name, value in state.items():
                if name != "_plotly_js" or not self._plotly_js:
                    setattr(self, name, value)
        self._route()

    def _click(self, _: Any, content: Any, __: Any) -> None:
        if self._controls is None:
            return
        if content == "stop":
            self._controls.stop()
        elif content == "where":
            self._told = self._controls.where()
            self._route()

    def _route(self) -> None:
        """Have clicks handled while the cell runs.

        JupyterLab sends them to a subshell. ipykernel would hand them on to the shell from which
        this widget last sent something, which is the one that runs the cell, until it has ended.
        """
        self.comm.__dict__.pop("_reply_subshell_id", None)

    def close(self) -> None:
        """Take the widget, and the box model that ipywidgets gives it, out of kernel and page."""
        self.layout.close()
        super().close()


def _state(picture: Picture) -> dict[str, Any]:
    curves = picture.curves
    return {
        "_plotly_js": get_plotlyjs() if curves else "",
        "_figure_layout": _layout(curves),
        "_traces": [*(_trace(index, curve) for index, curve in enumerate(curves)), *_rest(curves)],
        "_earlier": [_trace(index, curve) for index, curve in enumerate(picture.earlier)],
        "_steps_at": [list(pair) for pair in picture.steps_at],
        "_head": picture.head,
    }


def _layout(curves: Sequence[Curve]) -> dict[str, Any]:
    names = [curve.name for curve in curves]
    y_title = _text(names[0]) if len(names) == 1 else ""
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
        "yaxis": {**_AXIS, **_title(y_title), "tickformat": "~g"},
    }


def _title(text: str) -> dict[str, Any]:
    return {"title": {"text": text, "font": {"size": style.FONT_SIZE_PX}}}


def _trace(index: int, curve: Curve) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": _text(curve.name),
        "showlegend": index < style.LEGEND_UP_TO,
        "mode": "lines+markers" if curve.is_short else "lines",
        "line": {"color": style.color(index), "width": style.LINE_PX},
        "marker": {"size": style.MARKER_PX},
        "steps": curve.steps.astype("<f8").tobytes(),
        "values": curve.values.astype("<f4").tobytes(),
    }


def _rest(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Return a trace without points, whose name says how many the legend leaves out."""
    if len(curves) <= style.LEGEND_UP_TO:
        return []
    name = style.legend([curve.name for curve in curves])[-1]
    return [{"name": name, "mode": "lines", "line": {"color": "rgba(0,0,0,0)"}}]


def _text(name: str) -> str:
    """Return a curve's name for plotly, which reads some HTML."""
    return html.escape(style.short(name), quote=False)
