"""How long ``%%ddp`` takes around a cell, against ipyparallel's ``%%px`` on the same engines."""

from __future__ import annotations

from functools import partial

from compare import Comparison, Measure, Metric, alternate, print_table
from notebook import Notebook

_LINES = 20_000
_FLOOD_RANKS = 4
_EMPTY_ROUNDS = 40
_EMPTY_CELLS = 7  # in a row, of which the median counts
_FLOOD_ROUNDS = 7
_AIM = "≤ 1"

_SET_UP = """
%load_ext ddp_magic
import json, statistics, time
shell = get_ipython()

def time_cell(magic):
    begin_s = time.perf_counter()
    shell.run_cell_magic(magic, "", "pass")
    return 1000 * (time.perf_counter() - begin_s)

def time_cells(magic, count):
    print(json.dumps([statistics.median(time_cell(magic) for _ in range(count))]))
"""
_START = """
%ddp restart -n {ranks}
session = shell.magics_manager.registry["DdpMagics"].session
view = session._ranks().client[:]
view.block = True
view.activate()
"""
_SAME = f"for i in range({_LINES}): print('line', i, 'of a flood')"
_OWN = f"for i in range({_LINES}): print('line', i, 'of rank', rank)"


def main() -> None:
    """Measure and print."""
    with Notebook() as notebook:
        notebook.run(_SET_UP)
        comparisons = [
            *_empty_cell(notebook, 2),
            *_empty_cell(notebook, 4),
            *_flood(notebook, "same lines", _SAME, _LINES),
            *_flood(notebook, "own lines", _OWN, _LINES * _FLOOD_RANKS),
        ]
    print_table("Around a cell", "%%px", comparisons)


def _empty_cell(notebook: Notebook, ranks: int) -> list[Comparison]:
    notebook.run(_START.format(ranks=ranks))
    ours, baseline = (
        partial(notebook.value, f"time_cells({magic!r}, {_EMPTY_CELLS})") for magic in ("ddp", "px")
    )
    metric = Metric(f"empty cell, {ranks} ranks", "ms", _AIM)
    return alternate([metric], ours, baseline, rounds=_EMPTY_ROUNDS)


def _flood(notebook: Notebook, what: str, body: str, shown: int) -> list[Comparison]:
    """Measure a flood on all ranks until the page has it; ``%%ddp`` is to show so many lines."""
    ours = _timed_flood(notebook, f"%%ddp\n{body}", shown)
    baseline = _timed_flood(notebook, f"%%px\n{body}", _LINES * _FLOOD_RANKS)
    metric = Metric(f"{_LINES:,} lines from each of {_FLOOD_RANKS} ranks, {what}", "s", _AIM)
    return alternate([metric], ours, baseline, rounds=_FLOOD_ROUNDS)


def _timed_flood(notebook: Notebook, cell: str, shown: int) -> Measure:
    def measure() -> list[float]:
        took_s = notebook.run(cell)
        lines = sum(text.count("line ") for text in notebook.texts.values())
        if lines != shown:
            raise RuntimeError(f"{lines:,} lines of {shown:,} were shown")
        return [took_s]

    return measure


if __name__ == "__main__":
    main()
