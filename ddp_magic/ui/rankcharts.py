"""The losses and step times of all ranks, as pictures in the notebook."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from html import escape
from typing import Final

from ddp_magic.core.rankcharts import RankCharts
from ddp_magic.core.runstate import StepTime
from ddp_magic.ui import style
from ddp_magic.ui.series import Series
from ddp_magic.ui.still import still

_BAR_PX: Final = 16
_ROW_PX: Final = 22
_NAME_PX: Final = 66
_OWN: Final = "#3b82f6"
_SLOW: Final = "#ea7317"
_WAITS: Final = "rgba(128,128,128,0.35)"


class RankChartsView:
    """Shows `RankCharts`: a curve and a bar for each rank in a notebook, text elsewhere."""

    def __init__(self, charts: RankCharts) -> None:
        self.charts = charts

    def __repr__(self) -> str:
        return str(self.charts)

    def _repr_html_(self) -> str:
        parts = [f"<div>{escape(self.charts.headline)}</div>"]
        for name, of_ranks in self.charts.losses.items():
            curves = []
            for rank, points in sorted(of_ranks.items()):
                series = Series(f"rank {rank}")
                series.extend(points)
                curves.append(series.curve())
            parts.append(still(curves, f"{name} of each rank")["text/html"])
        if self.charts.times:
            parts.append(_bars(self.charts.times, self.charts.stragglers))
        return "".join(parts)


def _bars(times: Mapping[int, StepTime], slow: tuple[int, ...]) -> str:
    source = b64encode(bars_svg(times, slow).encode()).decode()
    legend = "time of a step: computing (stragglers orange, marked), then waiting for gradients"
    return (
        f'<img alt="{escape(legend)}" width="100%" style="display:block;margin:0" '
        f'src="data:image/svg+xml;base64,{source}">'
        f'<div style="margin-left:{_NAME_PX}px;font-size:13px">{escape(legend)}</div>'
    )


def bars_svg(times: Mapping[int, StepTime], slow: tuple[int, ...]) -> str:
    """Return a bar for each rank: what it needs itself, and what it waits."""
    longest_s = max(one.step_s for one in times.values())
    rows = []
    for number, (rank, one) in enumerate(sorted(times.items())):
        y = number * _ROW_PX + 3
        own, waits = 70 * one.own_s / longest_s, 70 * (one.waited_s or 0) / longest_s
        color = _SLOW if rank in slow else _OWN
        mark = " ◂ straggler" if rank in slow else ""
        told = f"{1e3 * one.own_s:.3g} + {1e3 * (one.waited_s or 0):.3g} ms{mark}"
        rows.append(
            f'<text x="{_NAME_PX - 8}" y="{y + _BAR_PX / 2}" dy=".35em" text-anchor="end">'
            f"rank {rank}</text>"
            f'<svg x="{_NAME_PX}" y="{y}" width="85%" height="{_BAR_PX}" style="overflow:visible">'
            f'<rect width="{own:.2f}%" height="{_BAR_PX}" fill="{color}"/>'
            f'<rect x="{own:.2f}%" width="{waits:.2f}%" height="{_BAR_PX}" fill="{_WAITS}"/>'
            f'<text x="{own + waits + 1:.2f}%" y="{_BAR_PX / 2}" dy=".35em">{told}</text></svg>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="100%" height="{len(times) * _ROW_PX}" '
        f'font-family="{style.FONT}" font-size="{style.FONT_SIZE_PX}" fill="{style.INK}">'
        f"{''.join(rows)}</svg>"
    )
