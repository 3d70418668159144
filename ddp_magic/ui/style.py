"""How a chart looks, live and as a still: nothing here depends on the theme being light or dark."""

from __future__ import annotations

import math
from typing import Final

HEIGHT_PX: Final = 260
MARGIN_LEFT_PX: Final = 58
MARGIN_RIGHT_PX: Final = 18
MARGIN_TOP_PX: Final = 12
MARGIN_BOTTOM_PX: Final = 44
LEGEND_ROW_PX: Final = 20

INK: Final = "#808080"  # readable on white and on black alike
GRID: Final = "rgba(128,128,128,0.22)"
FONT: Final = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
FONT_SIZE_PX: Final = 12
LINE_PX: Final = 1.6
MARKER_PX: Final = 5
MARKERS_UP_TO: Final = 40  # a curve of so few points shows each of them

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
