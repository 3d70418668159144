"""How the start, an empty cell and the memory of ``%%ddp`` grow with the number of ranks."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from compare import print_rows
from memory import Started, torch_processes

from ddp_magic import Session

RANKS = (1, 2, 4, 8, 16, 32, 64)
_EMPTY_CELLS = 7  # in a row, of which the median counts
_MIB = 2**20
_PICTURE = Path(__file__).with_name("startup_scaling.svg")
_NOTES = """\
One after the other: end, the old ranks have ended; import, torch is imported and the first rank is
forked; fork, the last is; register, the controller has all; join, they made a first collective."""


@dataclass(frozen=True)
class Phases:
    """What a start waits for, one thing after the other.

    Attributes
    ----------
    import_s
        Until the first rank is forked: the fork server has imported torch, and next to it the
        controller has started.
    fork_s
        The last rank has been forked.
    register_s
        All have registered with the controller.
    join_s
        They have connected to each other and made a first collective.
    """

    import_s: float
    fork_s: float
    register_s: float
    join_s: float

    @property
    def total_s(self) -> float:
        """The whole start."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class Size:
    """What was measured with one number of ranks."""

    ranks: int
    start: Phases
    restart: Phases
    restart_s: float
    cell_ms: float
    total_pss_mib: float
    private_mib: float

    def row(self) -> tuple[str, ...]:
        """Return its line in the table."""
        start, restart = self.start, self.restart
        seconds = (
            *(start.total_s, *vars(start).values()),
            *(self.restart_s, self.restart_s - restart.total_s),
            *(restart.fork_s, restart.register_s, restart.join_s),
        )
        return (
            str(self.ranks),
            *(f"{one_s:.2f}" for one_s in seconds),
            f"{self.cell_ms:.1f}",
            f"{self.total_pss_mib:,.0f}",
            f"{self.private_mib:.0f}",
        )


def main(ranks: Sequence[int]) -> None:
    """Measure, print, and draw."""
    sizes = [measure(count) for count in ranks]
    start = ("start s", "import", "fork", "register", "join")
    restart = ("restart s", "end", "fork", "register", "join")
    heading = ("ranks", *start, *restart, "empty cell ms", "PSS MiB", "private per rank MiB")
    print_rows("%%ddp by number of ranks", [heading, *(size.row() for size in sizes)])
    print(_NOTES)
    if strangers := torch_processes():
        print(f"Processes of others with torch loaded: {strangers}; PSS was less for them.")
    _draw(sizes)
    print(f"Drawn: {_PICTURE}")


def measure(ranks: int) -> Size:
    """Start ranks, restart them, run empty cells on them, and end them."""
    with Started() as started:
        before = dict(os.environ)
        os.environ.update(started.environment)
        try:
            session = Session(nproc=ranks)
            try:
                return _measure(session, started, ranks)
            finally:
                session.stop()
        finally:
            os.environ.clear()
            os.environ.update(before)
            gc.collect()


def _measure(session: Session, started: Started, ranks: int) -> Size:
    start, _ = _phases(session, session.start)
    restart, restart_s = _phases(session, session.restart)
    cells_s = [_time(lambda: session.run("pass")) for _ in range(_EMPTY_CELLS)]
    memories = started.memories()
    private = [one.private_bytes for one in memories if one.name.startswith("ddp-rank-")]
    return Size(
        ranks,
        start,
        restart,
        restart_s,
        1000 * statistics.median(cells_s),
        sum(one.pss_bytes for one in memories) / _MIB,
        statistics.fmean(private) / _MIB,
    )


def _phases(session: Session, action: Callable[[], object]) -> tuple[Phases, float]:
    """Return the phases of the start that an action makes, and the seconds of the action."""
    cluster: Any = session._cluster
    start, edges_s = cluster.start, []

    def timed(*arguments: Any) -> Any:
        edges_s.append(_now_s())
        started = start(*arguments)
        edges_s.append(_now_s())
        return started

    cluster.start = timed
    try:
        took_s = _time(action)
    finally:
        cluster.start = start
    begun_s, registered_s = edges_s
    forked_s = [_forked_s(rank.pid) for rank in session.status().ranks]
    edges_s = [begun_s, min(forked_s), max(forked_s), registered_s, _now_s()]
    return Phases(*(later_s - earlier_s for earlier_s, later_s in pairwise(edges_s))), took_s


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _forked_s(pid: int) -> float:
    """Return when a process began, by the same clock."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _time(action: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    action()
    return time.perf_counter() - begin_s


def _draw(sizes: Sequence[Size]) -> None:
    """Draw three panels: seconds to start and to restart, an empty cell, memory."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    ranks = [str(size.ranks) for size in sizes]
    figure, (times, cells, memory) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    floor = [0.0] * len(sizes)
    shades = {"import": "#08519c", "fork": "#3182bd", "register": "#6baed6", "join": "#c6dbef"}
    for name, shade in shades.items():
        heights = [getattr(size.start, f"{name}_s") for size in sizes]
        times.bar(ranks, heights, bottom=floor, color=shade, label=f"start: {name}")
        floor = [low + high for low, high in zip(floor, heights, strict=True)]
    restarts = [size.restart_s for size in sizes]
    times.plot(ranks, restarts, color="#d95f0e", marker="o", label="restart")
    times.legend(frameon=False)
    cells.plot(ranks, [size.cell_ms for size in sizes], color="#08519c", marker="o")
    memory.bar(ranks, [size.total_pss_mib for size in sizes], color="#3182bd")
    for axes, title in (
        (times, "Start and restart, s"),
        (cells, "Empty cell, ms"),
        (memory, "Memory of all processes (PSS), MiB"),
    ):
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel("ranks")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e5e5e5")
        axes.set_axisbelow(True)
    figure.savefig(_PICTURE, metadata={"Date": None})
    plt.close(figure)
