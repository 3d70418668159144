"""How long ranks take to start, and what memory they need, next to other ways to have ranks."""

from __future__ import annotations

import argparse
import os
import queue
import re
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import psutil
import startup_quickstart
import startup_scaling
from compare import print_rows
from memory import torch_processes
from startup_peers import WAYS, import_torch
from startup_run import Result

_MIB = 2**20
_RANKS = (2, 4, 8)
_REPEATS = 3
_QUICK_RANKS, _QUICK_REPEATS = (2, 4), 1
_REASON_CHARACTERS = 240
_SHARE = 0.15
_CALM_S = 1.0
_CALM_CPU_S = 0.1  # in that time
_NOTES = """\
PSS: own pages, and of those shared by n processes the nth part. All: without the notebook's kernel.
One more rank: the difference of all processes, over that of the ranks."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Measured:
    """What was measured of one way with one number of ranks, round by round."""

    took_s: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    figures: list[dict[str, float]] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def add(self, result: Result, baseline_s: float, share: float) -> None:
        """Add one round, in which processes of others took a share of the CPU time."""
        self.shares.append(share)
        self.took_s.append(result.took_s)
        self.ratios.append(result.took_s / baseline_s)
        self.figures.append(result.footprint.figures())

    @property
    def disturbed(self) -> bool:
        """Whether others took much of the CPU time."""
        return statistics.median(self.shares) > _SHARE

    def mib(self, name: str) -> float:
        """Return a figure's median."""
        return statistics.median(figures[name] for figures in self.figures) / _MIB


@dataclass
class Report:
    """All that was measured, and why what was not was not."""

    measured: dict[tuple[str, int], Measured] = field(default_factory=lambda: defaultdict(Measured))
    failures: dict[tuple[str, int], str] = field(default_factory=dict)
    baseline_s: list[float] = field(default_factory=list)
    strangers: int = 0


def main() -> None:
    """Measure and print."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # not before all that was started
    if options.quickstart:
        return startup_quickstart.main()
    if options.scaling:
        return startup_scaling.main(options.ranks or startup_scaling.RANKS)
    ranks = options.ranks or (_QUICK_RANKS if options.quick else _RANKS)
    repeats = options.repeats or (_QUICK_REPEATS if options.quick else _REPEATS)
    report = measure(options.peers, ranks, repeats, options.patience)
    print_times(report, options.peers, ranks, repeats)
    print_memory(report, options.peers, ranks)


def measure(names: Sequence[str], ranks: Sequence[int], repeats: int, patience_s: float) -> Report:
    """Measure every way with every number of ranks, each right after ``import torch``."""
    report = Report()
    import_torch()  # reads the files
    for turn in range(repeats):
        for count in ranks:
            # By turns, so that none has the same neighbours each time.
            for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                if (name, count) not in report.failures:
                    _await_calm(patience_s)
                    _measure_once(report, name, count)
    return report


def _measure_once(report: Report, name: str, count: int) -> None:
    busy_s, own_s = _busy_s(), _own_s()
    baseline_s = import_torch()
    report.baseline_s.append(baseline_s)
    try:
        result = WAYS[name](count)
    except Exception as error:  # whatever it is that a peer cannot do
        report.failures[name, count] = _reason(error)
        print(f"{name}, {count} ranks: {error!r}", file=sys.stderr, flush=True)
    else:
        share = 1 - (_own_s() - own_s) / (_busy_s() - busy_s)
        report.measured[name, count].add(result, baseline_s, share)
        line = f"{name}, {count} ranks: {result.took_s:.2f} s, others' CPU time {share:.0%}"
        print(line, file=sys.stderr, flush=True)
    report.strangers = max(report.strangers, torch_processes())


def print_times(report: Report, names: Sequence[str], ranks: Sequence[int], repeats: int) -> None:
    """Print the medians, and the ratios to ``import torch``."""
    rows = [("", *(f"{count} ranks" for count in ranks))]
    for name in names:
        rows.append((name, *(_time(report, name, count) for count in ranks)))
    baseline_s = statistics.median(report.baseline_s)
    rows.append(("import torch", *[f"{baseline_s:.2f} s (1.00)"] * len(ranks)))
    print_rows("Until a first collective's result is back", rows)
    print(f"Rounds: {repeats}; medians. In brackets, the ratio to `import torch` right before.")
    if any(one.disturbed for one in report.measured.values()):
        print(f"* Processes of others took more than {_SHARE:.0%} of the CPU time meanwhile.")
    for (name, count), reason in report.failures.items():
        print(f"{name}, {count} ranks, not measured: {reason}")


def print_memory(report: Report, names: Sequence[str], ranks: Sequence[int]) -> None:
    """Print what the ranks and all other processes take, and what one more rank does."""
    heading = ("MiB", "ranks", "a rank: PSS", "private", "others: number", "PSS", "all: PSS")
    rows = [(*heading, "kernel, apart: PSS")]
    for name in names:
        rows += [_memory(name, n, one) for n in ranks if (one := report.measured.get((name, n)))]
    print()
    print_rows("Memory after the first collective", rows)
    more = [row for name in names for row in _added(report, name, ranks)]
    if more:
        print()
        print_rows("What one more rank takes", [("MiB", "ranks", "PSS", "private"), *more])
    print(_NOTES)
    if report.strangers:
        print(f"Processes of others with torch loaded: {report.strangers}; PSS was less for them.")


def _time(report: Report, name: str, count: int) -> str:
    one = report.measured.get((name, count))
    if one is None:
        return "not measured"
    took_s, ratio = statistics.median(one.took_s), statistics.median(one.ratios)
    return f"{took_s:.2f} s ({ratio:.2f}){'*' if one.disturbed else ''}"


def _memory(name: str, ranks: int, one: Measured) -> tuple[str, ...]:
    figures = ("rank_pss", "rank_private", "others_pss", "total_pss", "kernel_pss")
    pss, private, others_pss, total_pss, kernel_pss = map(one.mib, figures)
    others = statistics.median(figures["others"] for figures in one.figures)
    mib = (f"{pss:.0f}", f"{private:.0f}", f"{others:.0f}", f"{others_pss:.0f}", f"{total_pss:.0f}")
    return (name, str(ranks), *mib, f"{kernel_pss:.0f}" if kernel_pss else "-")


def _added(report: Report, name: str, ranks: Sequence[int]) -> Iterable[tuple[str, ...]]:
    counts = [count for count in sorted(ranks) if (name, count) in report.measured]
    if len(counts) < 2:
        return
    few, many = (report.measured[name, count] for count in (counts[0], counts[-1]))
    count = counts[-1] - counts[0]
    added = ((many.mib(what) - few.mib(what)) / count for what in ("total_pss", "total_private"))
    yield (name, f"{counts[0]} to {counts[-1]}", *(f"{mib:.0f}" for mib in added))


def _await_calm(patience_s: float) -> None:
    """Wait until nothing else runs on this machine, if that comes in time."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        before_s = _busy_s()
        time.sleep(_CALM_S)
        if _busy_s() - before_s < _CALM_CPU_S:
            return


def _busy_s() -> float:
    """Return the CPU time that has been used on this machine."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _own_s() -> float:
    """Return the CPU time of this process, and of all below it that have ended."""
    return sum(os.times()[:4])


def _reason(error: Exception) -> str:
    """Return a line on what went wrong: the last of a traceback, for that is what says it."""
    if isinstance(error, queue.Empty):
        return "no answer in time"
    lines = _ANSI.sub("", str(error)).strip().splitlines() or [type(error).__name__]
    return lines[-1][-_REASON_CHARACTERS:]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=_numbers, metavar="2,4,8", help="numbers of ranks")
    parser.add_argument("--repeats", type=int, help=f"rounds; by default {_REPEATS}")
    parser.add_argument(
        "--peers", type=_names, default=list(WAYS), metavar="A,B", help=", ".join(WAYS)
    )
    parser.add_argument(
        "--patience", type=float, default=0.0, metavar="S", help="wait so long for a quiet machine"
    )
    parser.add_argument("--quick", action="store_true", help="one round of 2 and 4 ranks")
    parser.add_argument("--scaling", action="store_true", help="%%%%ddp alone, 1 to 64 ranks")
    parser.add_argument("--quickstart", action="store_true", help="the quickstart's peak memory")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in WAYS]:
        raise argparse.ArgumentTypeError(f"no such: {', '.join(unknown)}")
    return names


if __name__ == "__main__":
    main()
