"""Two ways of doing the same thing, measured by turns, and the ratio between them."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

Measure = Callable[[], Sequence[float]]


@dataclass(frozen=True)
class Metric:
    """A quantity that one measurement gives.

    Attributes
    ----------
    name
        What it is.
    unit
        Its unit.
    aim
        What the ratio of ours to the baseline is to be, such as ``"≤ 1"``; empty: no matter.
    """

    name: str
    unit: str
    aim: str = ""


@dataclass(frozen=True)
class Comparison:
    """What was measured of one metric, ours and the baseline's, round by round."""

    metric: Metric
    ours: Sequence[float]
    baseline: Sequence[float]

    def row(self) -> tuple[str, ...]:
        """Return the cells of this comparison's line in the table."""
        unit = self.metric.unit
        ratios = [mine / theirs for mine, theirs in zip(self.ours, self.baseline, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return (
            self.metric.name,
            f"{statistics.median(self.ours):,.2f} {unit}",
            f"{statistics.median(self.baseline):,.2f} {unit}",
            f"{middle:.3f}",
            f"{low:.3f}-{high:.3f}",
            self.metric.aim,
            str(len(ratios)),
        )


def alternate(
    metrics: Sequence[Metric], ours: Measure, baseline: Measure, *, rounds: int
) -> list[Comparison]:
    """Measure both in each of ``rounds`` rounds, by turns one and the other first.

    A round before these is not counted.

    Parameters
    ----------
    metrics
        What a measurement returns, in this order.
    """
    values: dict[Measure, list[Sequence[float]]] = {ours: [], baseline: []}
    for turn in range(rounds + 1):
        for measure in (ours, baseline) if turn % 2 else (baseline, ours):
            values[measure].append(measure())
    columns = (zip(*values[measure][1:], strict=True) for measure in (ours, baseline))
    return [
        Comparison(metric, mine, theirs)
        for metric, mine, theirs in zip(metrics, *columns, strict=True)
    ]


def print_table(title: str, baseline: str, comparisons: Sequence[Comparison]) -> None:
    """Print the medians and the ratios, and what they were measured on."""
    heading = ("", "%%ddp", baseline, "ratio", "quartiles", "aim", "rounds")
    print_rows(title, [heading, *(comparison.row() for comparison in comparisons)])
    print("Medians over rounds; a round's ratio is that of %%ddp to the baseline.")


def print_rows(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print a title with what was measured on, and lines whose cells stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"{title} ({_machine()})")
    for row in rows:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *rest]).rstrip())


def core_count() -> int:
    """Return the number of cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def _machine() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "ipyparallel"))
    return f"{core_count()} cores, {packages}, Python {platform.python_version()}"
