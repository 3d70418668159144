"""Notebooks with committed outputs: as they are, as they are run anew, what must be alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"

_CHANGING = r"-?\d+\.\d+(e[-+]\d+)?|#\d+|\d+ threads? each"
_OF_THE_MACHINE = (
    "CPU times",
    "Wall time",
    "ddp: nothing was printed for",
    "Matplotlib is building",
)
_PLACES = r"/(?:home|root|tmp|Users|mnt|work)/\S*|\S*-packages\S*"


def committed(name: str) -> NotebookNode:
    """Return a notebook as it is committed."""
    return nbformat.read(NOTEBOOKS / name, as_version=4)


def run_anew(name: str) -> NotebookNode:
    """Return a notebook as it comes out now; cells that are tagged so may fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(NOTEBOOKS))
        from demo import execute
    return execute(NOTEBOOKS / name)


def code_cells(notebook: NotebookNode) -> dict[str, NotebookNode]:
    """Return the code cells by their ids, in order."""
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def text_of(cell: NotebookNode) -> str:
    """Return all that a cell shows, as plain text."""
    return "\n".join(text for output in cell.outputs for text in _texts(output))


def _texts(output: NotebookNode) -> Iterator[str]:
    if output.output_type == "stream":
        yield output.text
    elif output.output_type == "error":
        yield re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.traceback))
    else:
        yield str(output.data.get("text/plain", ""))


def check_failures(notebook: NotebookNode, expected: dict[str, str]) -> None:
    """Assert that all cells have run, and that those have failed, with these errors, which may."""
    cells = code_cells(notebook)
    assert [one.execution_count for one in cells.values()] == list(range(1, len(cells) + 1))
    failed = {
        name: output.ename
        for name, cell in cells.items()
        for output in cell.outputs
        if output.output_type == "error"
    }
    assert failed == expected
    tagged = {name for name, cell in cells.items() if "raises-exception" in str(cell.metadata)}
    assert tagged == failed.keys()


def lasting(cell: NotebookNode) -> list[str]:
    """Return the lines that a cell shows, in any order, without what another run may change.

    That is: decimals (times, and what is computed), the numbers of collectives, where in torch an
    error was raised, and in how many lines it is told what was done to the cell.
    """
    lines = text_of(cell).splitlines()
    raised = [n for n, line in enumerate(lines) if line.startswith("AnomalyError:")]
    lines = lines[raised[-1] :] if raised else lines
    masked = (re.sub(_CHANGING, "~", line) for line in lines)
    told = (line for line in masked if not line.startswith(_OF_THE_MACHINE))
    facts = {fact for line in told for fact in line.split(" · ")}
    return sorted(re.sub(r"\s+", " ", fact).strip() for fact in facts)


def places(notebook: NotebookNode) -> list[str]:
    """Return the paths of this machine that a notebook's outputs name."""
    outputs = [NotebookNode({**c, "source": ""}) for c in code_cells(notebook).values()]
    return re.findall(_PLACES, nbformat.writes(nbformat.v4.new_notebook(cells=outputs)))
