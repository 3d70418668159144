"""Curves as a picture in the saved notebook: no kernel, no widget, no script, no trust needed.

The picture is SVG in the ``src`` of an ``<img>``: JupyterLab shows that in notebooks that it does
not trust, where it refuses ``image/svg+xml`` and inline ``<svg>``; so do nbconvert and VS Code.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from typing import Final

import numpy as np

from ddp_magic.ui import style
from ddp_magic.ui.series import Array, Curve

_UNITS: Final = 2000  # the plot's inner coordinates run from 0 to this, both ways
_CAPTION_STYLE: Final = (
    f"margin:0 0 6px {style.MARGIN_LEFT_PX}px;font-size:13px;overflow-wrap:anywhere"
)

Range = tuple[float, float]


def still(curves: Sequence[Curve], caption: str) -> dict[str, str]:
    """Return the MIME bundle of a picture of `curves` with a line of text beneath it."""
    source = b64encode(svg(curves).encode()).decode()
    html = (
        f'<img alt="{escape(caption)}" width="100%" style="display:block;margin:0" '
        f'src="data:image/svg+xml;base64,{source}">'
        f'<div style="{_CAPTION_STYLE}">{escape(caption)}</div>'
    )
    return {"text/html": html, "text/plain": caption}


def svg(curves: Sequence[Curve]) -> str:
    """Return a chart as wide as its place and some 260 px high.

    Text keeps its size whatever the width: the curves alone are stretched, in an inner picture
    with coordinates of its own, and the rest is placed in per cent of the plot's width.
    """
    top = style.MARGIN_TOP_PX + style.legend_height([curve.name for curve in curves])
    height = top + style.PLOT_HEIGHT_PX + style.MARGIN_BOTTOM_PX
    sides = style.MARGIN_LEFT_PX + style.MARGIN_RIGHT_PX
    x_range, y_range = _x_range(curves), _y_range(curves)
    y_title = style.short(curves[0].name) if len(curves) == 1 else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="100%" height="{height}" '
        f'font-family="{style.FONT}" font-size="{style.FONT_SIZE_PX}" fill="{style.INK}">'
        f"{_legend(curves)}"
        f'<svg x="{style.MARGIN_LEFT_PX}" y="{top}" width="90%" height="{style.PLOT_HEIGHT_PX}" '
        f'style="width:calc(100% - {sides}px);overflow:visible">'
        f"{_x_axis(x_range)}{_y_axis(y_range, y_title)}"
        f"{_plot(curves, x_range, y_range)}</svg></svg>"
    )


def _legend(curves: Sequence[Curve]) -> str:
    names = [curve.name for curve in curves]
    places = style.legend_places(names)
    return "".join(
        _legend_entry(name, style.color(i) if i < style.LEGEND_UP_TO else "none", x, row)
        for i, (name, (x, row)) in enumerate(zip(style.legend(names), places, strict=True))
    )


def _legend_entry(name: str, color: str, x: float, row: int) -> str:
    left = style.MARGIN_LEFT_PX + x
    middle = style.MARGIN_TOP_PX - 2 + row * style.LEGEND_ROW_PX
    return (
        f'<path d="M{left:g} {middle}h18" stroke="{color}" stroke-width="2.5"/>'
        f'<text x="{left + style.LEGEND_MARK_PX:g}" y="{middle}" dy=".35em">{escape(name)}</text>'
    )


def _x_axis(span: Range) -> str:
    height = style.PLOT_HEIGHT_PX
    labels = "".join(
        f'<text x="{100 * share:.3f}%" y="{height + 18}" text-anchor="middle">{step:,.0f}</text>'
        for share, step in _ticks(span, at_most=8, least_distance=1)
    )
    return f'{labels}<text x="50%" y="{height + 36}" text-anchor="middle">step</text>'


def _y_axis(span: Range, title: str) -> str:
    middle = f"translate({16 - style.MARGIN_LEFT_PX},{style.PLOT_HEIGHT_PX / 2:g}) rotate(-90)"
    parts = [f'<text transform="{middle}" text-anchor="middle">{escape(title)}</text>']
    for share, value in _ticks(span, at_most=8):
        y = f"{100 - 100 * share:.3f}%"
        label = _short(value)
        parts.append(f'<line x2="100%" y1="{y}" y2="{y}" stroke="{style.GRID}"/>')
        parts.append(f'<text x="-8" y="{y}" dy=".35em" text-anchor="end">{label}</text>')
    return "".join(parts)


def _short(value: float) -> str:
    """Return a tick's value in about six characters."""
    if not value or 1e-3 <= abs(value) < 1e5:
        return f"{value:.6g}"
    return re.sub(r"e([+-])0*", lambda found: "e" + found[1].strip("+"), f"{value:.4g}")


def _plot(curves: Sequence[Curve], x_range: Range, y_range: Range) -> str:
    lines, markers = [], []
    for index, curve in enumerate(curves):
        x = (curve.steps - x_range[0]) / (x_range[1] - x_range[0])
        y = 1 - (curve.values - y_range[0]) / (y_range[1] - y_range[0])
        color = style.color(index)
        lines.append(f'<path d="{_path(x * _UNITS, y * _UNITS)}" stroke="{color}"/>')
        if curve.is_short:
            markers.append(_markers(x, y, color))
    return (
        f'<svg width="100%" height="100%" viewBox="0 0 {_UNITS} {_UNITS}" '
        f'preserveAspectRatio="none" overflow="visible" fill="none" '
        f'stroke-width="{style.LINE_PX}" stroke-linejoin="round" stroke-linecap="round">'
        # each path, not the group: the attribute is not inherited
        + "".join(lines).replace("<path ", '<path vector-effect="non-scaling-stroke" ')
        + "</svg>"
        + "".join(markers)
    )


def _path(x: Array, y: Array) -> str:
    """Return path commands in whole units, each point relative to the one before it."""
    parts: list[str] = []
    last: tuple[int, int] | None = None
    for point_x, point_y in zip(x, y, strict=True):
        if not math.isfinite(point_y):
            last = None
            continue
        here = round(point_x), round(point_y)
        if last is None:
            parts.append(f"M{here[0]} {here[1]}h0")
        elif here != last:
            parts.append(f"l{here[0] - last[0]} {here[1] - last[1]}")
        last = here
    return "".join(parts)


def _markers(x: Array, y: Array, color: str) -> str:
    return "".join(
        f'<circle cx="{100 * share_x:.3f}%" cy="{100 * share_y:.3f}%" '
        f'r="{style.MARKER_PX / 2}" fill="{color}"/>'
        for share_x, share_y in zip(x, y, strict=True)
        if math.isfinite(share_y)
    )


def _x_range(curves: Sequence[Curve]) -> Range:
    steps = np.concatenate([curve.steps for curve in curves])
    return _wide_enough(float(steps.min()), float(steps.max()))


def _y_range(curves: Sequence[Curve]) -> Range:
    values = np.concatenate([curve.values for curve in curves])
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = _wide_enough(float(values.min()), float(values.max()))
    margin = 0.06 * (high - low)
    return low - margin, high + margin


def _wide_enough(low: float, high: float) -> Range:
    """Widen a range that has next to no width, as that of a single point."""
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    margin = abs(low) / 10 or 0.5
    return low - margin, high + margin


def _ticks(span: Range, *, at_most: int, least_distance: float = 0.0) -> list[tuple[float, float]]:
    """Return round numbers within `span`: (share of the way from its start, number)."""
    low, high = span
    distance = _round_distance(max((high - low) / (at_most - 1), least_distance))
    numbers = range(math.ceil(low / distance), math.floor(high / distance) + 1)
    return [((i * distance - low) / (high - low), i * distance) for i in numbers]


def _round_distance(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, ... times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= least * (1 - 1e-9))
