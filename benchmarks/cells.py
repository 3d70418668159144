"""How long ``%%ddp`` takes around a cell, against ipyparallel's ``%%px`` on the same engines."""

from __future__ import annotations

from functools import partial

from compare import Comparison, Measure, alternate, print_table
from notebook import Notebook

_LINES = 20_000
_FLOOD_RANKS = 4
_EMPTY_ROUNDS = 100
_FLOOD_ROUNDS = 7
_AIM = "≤ 1"

_SET_UP = """
%load_ext ddp_magic
import json, time
shell = get_ipython()

def time_cell(magic, body):
    begin_s = time.perf_counter()
    shell.run_cell_magic(magic, "", body)
    print(json.dumps(1000 * (time.perf_counter() - begin_s)))
"""
_START = """
%ddp restart -n {ranks}
session = shell.magics_manager.registry["DdpMagics"].session
view = session._cluster.client[:]
view.block = True
view.activate()
"""
_SAME = f"for i in range({_LINES}): print('line', i, 'of a flood')"
_OWN = f"for i in range({_LINES}): print('line', i, 'of rank', rank)"


def main() -> None:
    """Measure and print."""
    with Notebook() as notebook:
        notebook.run(_SET_UP)
        empty = [_empty_cell(notebook, ranks) for ranks in (2, 4)]
        floods = [
            _flood(notebook, "same lines", _SAME, _LINES),
            _flood(notebook, "own lines", _OWN, _LINES * _FLOOD_RANKS),
        ]
    print_table("Around a cell", "%%px", [*empty, *floods])


def _empty_cell(notebook: Notebook, ranks: int) -> Comparison:
    notebook.run(_START.format(ranks=ranks))
    ours, baseline = (
        partial(notebook.value, f"time_cell({magic!r}, 'pass')") for magic in ("ddp", "px")
    )
    name = f"empty cell, {ranks} ranks"
    return alternate(name, ours, baseline, rounds=_EMPTY_ROUNDS, unit="ms", aim=_AIM)


def _flood(notebook: Notebook, what: str, body: str, shown: int) -> Comparison:
    """Measure a flood on all ranks until the page has it; ``%%ddp`` is to show so many lines."""
    ours = _timed_flood(notebook, f"%%ddp\n{body}", shown)
    baseline = _timed_flood(notebook, f"%%px\n{body}", _LINES * _FLOOD_RANKS)
    name = f"{_LINES:,} lines from each of {_FLOOD_RANKS} ranks, {what}"
    return alternate(name, ours, baseline, rounds=_FLOOD_ROUNDS, unit="s", aim=_AIM)


def _timed_flood(notebook: Notebook, cell: str, shown: int) -> Measure:
    def measure() -> float:
        took_s = notebook.run(cell)
        lines = sum(text.count("line ") for text in notebook.texts.values())
        if lines != shown:
            raise RuntimeError(f"{lines:,} lines of {shown:,} were shown")
        return took_s

    return measure


if __name__ == "__main__":
    main()
