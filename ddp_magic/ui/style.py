"""How a chart looks, live and as a still: nothing here depends on the theme being light or dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

PLOT_HEIGHT_PX: Final = 204  # with margins and no legend: 260
MARGIN_LEFT_PX: Final = 66
MARGIN_RIGHT_PX: Final = 28
MARGIN_TOP_PX: Final = 12
MARGIN_BOTTOM_PX: Final = 44
HTML_PADDING_PX: Final = 16  # JupyterLab indents HTML on the right by about so much
LEGEND_ROW_PX: Final = 20
LEGEND_MARK_PX: Final = 26  # a piece of line, and the space after it
_LEGEND_GAP_PX: Final = 18
_LEGEND_WIDTH_PX: Final = 560  # a longer one goes on in a further row
_CHARACTER_PX: Final = 6.6

INK: Final = "#808080"  # readable on white and on black alike
GRID: Final = "rgba(128,128,128,0.22)"
FONT: Final = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
FONT_SIZE_PX: Final = 12
LINE_PX: Final = 1.6
MARKER_PX: Final = 5
MARKERS_UP_TO: Final = 40  # a curve of so few points shows each of them
LEGEND_UP_TO: Final = 12  # curves
_NAME_CHARACTERS: Final = 40

_PALETTE: Final = (
    "#3b82f6",
    "#ea7317",
    "#16a34a",
    "#a855f7",
    "#e0457b",
    "#0d9aa6",
    "#a1803c",
    "#6b7fd7",
)


def color(index: int) -> str:
    """Colour of the curve that came as number `index`."""
    return _PALETTE[index % len(_PALETTE)]


def number(value: float) -> str:
    """Three significant digits, without an exponent where that reads well."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def short(name: str) -> str:
    """Return a curve's name at a length that leaves room for others."""
    return name if len(name) <= _NAME_CHARACTERS else name[: _NAME_CHARACTERS - 1] + "…"


def legend(names: Sequence[str]) -> list[str]:
    """Return what the legend says of curves: one needs none, and of many some stand for all."""
    if len(names) < 2:
        return []
    shown = [short(name) for name in names[:LEGEND_UP_TO]]
    return [*shown, f"and {len(names) - len(shown)} more"] if len(names) > len(shown) else shown


def legend_places(names: Sequence[str]) -> list[tuple[float, int]]:
    """Return where each entry of `legend` stands: (pixels from its left, row)."""
    places: list[tuple[float, int]] = []
    x, row = 0.0, 0
    for name in legend(names):
        width = LEGEND_MARK_PX + len(name) * _CHARACTER_PX
        if x and x + width > _LEGEND_WIDTH_PX:
            x, row = 0.0, row + 1
        places.append((x, row))
        x += width + _LEGEND_GAP_PX
    return places


def legend_height(names: Sequence[str]) -> int:
    """Pixels that the legend needs above the plot."""
    return (1 + legend_places(names)[-1][1]) * LEGEND_ROW_PX if len(names) > 1 else 0
