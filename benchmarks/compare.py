"""Two ways of doing the same thing, measured by turns, and the ratio between them."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

Measure = Callable[[], float]


@dataclass(frozen=True)
class Comparison:
    """What was measured of ours and of a baseline, round by round.

    Attributes
    ----------
    name
        What was done.
    unit
        Unit of the measured values.
    ours, baseline
        One value of each per round.
    aim
        What the ratio is to be, such as ``"≤ 1"``.
    """

    name: str
    unit: str
    ours: Sequence[float]
    baseline: Sequence[float]
    aim: str

    @property
    def ratios(self) -> list[float]:
        """Ours to the baseline, of each round."""
        return [mine / theirs for mine, theirs in zip(self.ours, self.baseline, strict=True)]

    def row(self) -> tuple[str, ...]:
        """Return the cells of this comparison's line in the table."""
        low, middle, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return (
            self.name,
            f"{statistics.median(self.ours):,.2f} {self.unit}",
            f"{statistics.median(self.baseline):,.2f} {self.unit}",
            f"{middle:.3f}",
            f"{low:.3f}-{high:.3f}",
            self.aim,
            str(len(self.ours)),
        )


def alternate(
    name: str, ours: Measure, baseline: Measure, *, rounds: int, unit: str, aim: str
) -> Comparison:
    """Measure both in each of ``rounds`` rounds, and which comes first in turn.

    A round before these is not counted.
    """
    values: dict[Measure, list[float]] = {ours: [], baseline: []}
    for turn in range(rounds + 1):
        for measure in (ours, baseline) if turn % 2 else (baseline, ours):
            values[measure].append(measure())
    return Comparison(name, unit, values[ours][1:], values[baseline][1:], aim)


def print_table(title: str, baseline: str, comparisons: Sequence[Comparison]) -> None:
    """Print the medians and the ratios, and what they were measured on."""
    heading = ("", "%%ddp", baseline, "ratio", "quartiles", "aim", "rounds")
    rows = [heading, *(comparison.row() for comparison in comparisons)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"{title} ({_machine()})")
    for row in rows:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *rest]))
    print("Medians; the ratio is the median over rounds of %%ddp to the baseline.", flush=True)


def core_count() -> int:
    """Return the number of cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def _machine() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "ipyparallel"))
    return f"{core_count()} cores, {packages}, Python {platform.python_version()}"
