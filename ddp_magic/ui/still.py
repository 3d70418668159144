"""Curves as a picture in the saved notebook: no kernel, no widget, no script, no trust needed.

The picture is SVG in the ``src`` of an ``<img>``: JupyterLab shows that in notebooks that it does
not trust, where it refuses ``image/svg+xml`` and inline ``<svg>``; so do nbconvert and VS Code.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from typing import Final

import numpy as np

from ddp_magic.ui import style
from ddp_magic.ui.series import Array, Curve

_UNITS: Final = 2000  # the plot's inner coordinates run from 0 to this, both ways
_CHARACTER_PX: Final = 6.6
_LEGEND_WIDTH_PX: Final = 560  # a legend longer than this goes on in a further row
_LEGEND_MARK_PX: Final = 26
_LEGEND_GAP_PX: Final = 18

Range = tuple[float, float]


def still(curves: Sequence[Curve], caption: str) -> dict[str, str]:
    """Return the MIME bundle of a picture of `curves` with a line of text beneath it."""
    source = b64encode(svg(curves).encode()).decode()
    html = (
        f'<img alt="{escape(caption)}" width="100%" '
        f'src="data:image/svg+xml;base64,{source}">'
        f"<div>{escape(caption)}</div>"
    )
    return {"text/html": html, "text/plain": caption}


def svg(curves: Sequence[Curve]) -> str:
    """Return a chart as wide as its place and `style.HEIGHT_PX` high.

    Text keeps its size whatever the width: the curves alone are stretched, in an inner picture
    with coordinates of its own, and the rest is placed in per cent of the plot's width.
    """
    legend, rows = _legend(curves) if len(curves) > 1 else ("", 0)
    top = style.MARGIN_TOP_PX + rows * style.LEGEND_ROW_PX
    height = style.HEIGHT_PX - top - style.MARGIN_BOTTOM_PX
    sides = style.MARGIN_LEFT_PX + style.MARGIN_RIGHT_PX
    x_range, y_range = _x_range(curves), _y_range(curves)
    y_title = escape(curves[0].name) if len(curves) == 1 else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="100%" height="{style.HEIGHT_PX}" '
        f'font-family="{style.FONT}" font-size="{style.FONT_SIZE_PX}" fill="{style.INK}">'
        f"{legend}"
        f'<text transform="translate(14,{top + height / 2:g}) rotate(-90)" '
        f'text-anchor="middle">{y_title}</text>'
        f'<svg x="{style.MARGIN_LEFT_PX}" y="{top}" width="92%" height="{height}" '
        f'style="width:calc(100% - {sides}px);overflow:visible">'
        f"{_x_axis(x_range, height)}{_y_axis(y_range)}"
        f"{_plot(curves, x_range, y_range)}</svg></svg>"
    )


def _legend(curves: Sequence[Curve]) -> tuple[str, int]:
    """Return the legend and its number of rows."""
    parts, x, row = [], 0.0, 0
    for index, curve in enumerate(curves):
        width = _LEGEND_MARK_PX + len(curve.name) * _CHARACTER_PX
        if x and x + width > _LEGEND_WIDTH_PX:
            x, row = 0.0, row + 1
        parts.append(_legend_entry(curve.name, style.color(index), x, row))
        x += width + _LEGEND_GAP_PX
    return "".join(parts), row + 1


def _legend_entry(name: str, color: str, x: float, row: int) -> str:
    left = style.MARGIN_LEFT_PX + x
    middle = style.MARGIN_TOP_PX - 2 + row * style.LEGEND_ROW_PX
    return (
        f'<path d="M{left:g} {middle}h18" stroke="{color}" stroke-width="2.5"/>'
        f'<text x="{left + _LEGEND_MARK_PX:g}" y="{middle}" dy=".35em">{escape(name)}</text>'
    )


def _x_axis(span: Range, height: float) -> str:
    labels = "".join(
        f'<text x="{100 * share:.3f}%" y="{height + 18:g}" text-anchor="middle">{label}</text>'
        for share, label in _ticks(span, about=6, whole=True)
    )
    return f'{labels}<text x="50%" y="{height + 36:g}" text-anchor="middle">step</text>'


def _y_axis(span: Range) -> str:
    parts = []
    for share, label in _ticks(span, about=5):
        y = f"{100 - 100 * share:.3f}%"
        parts.append(f'<line x2="100%" y1="{y}" y2="{y}" stroke="{style.GRID}"/>')
        parts.append(f'<text x="-8" y="{y}" dy=".35em" text-anchor="end">{label}</text>')
    return "".join(parts)


def _plot(curves: Sequence[Curve], x_range: Range, y_range: Range) -> str:
    lines, markers = [], []
    for index, curve in enumerate(curves):
        x = (curve.steps - x_range[0]) / (x_range[1] - x_range[0])
        y = 1 - (curve.values - y_range[0]) / (y_range[1] - y_range[0])
        color = style.color(index)
        lines.append(f'<path d="{_path(x * _UNITS, y * _UNITS)}" stroke="{color}"/>')
        if len(x) <= style.MARKERS_UP_TO:
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


def _ticks(span: Range, *, about: int, whole: bool = False) -> list[tuple[float, str]]:
    """Return round numbers within `span`: (share of the way from its start, label)."""
    low, high = span
    distance = _round_distance((high - low) / about)
    if whole:
        distance = max(1.0, distance)
    first, last = math.ceil(low / distance), math.floor(high / distance)
    decimals = max(0, -math.floor(math.log10(distance)))
    return [
        ((i * distance - low) / (high - low), _label(i * distance, decimals))
        for i in range(first, last + 1)
    ]


def _round_distance(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, ... times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= least * (1 - 1e-9))


def _label(value: float, decimals: int) -> str:
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}"
    return f"{value:,.{decimals}f}"
