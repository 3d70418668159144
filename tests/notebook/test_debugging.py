"""The debugging notebook finds what it says, as it is committed and as it is run anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

_NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
_DEBUGGING = _NOTEBOOKS / "debugging.ipynb"
_FAILING = {
    "check": "ParityError",
    "validation": "CellError",
    "anomaly": "CellError",
    "failing": "CellError",
}

pytestmark = pytest.mark.timeout(360)


@pytest.fixture(scope="module")
def anew() -> NotebookNode:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(_NOTEBOOKS))
        from demo import execute
    return execute(_DEBUGGING)


@pytest.fixture(params=["committed", "anew"])
def notebook(request: pytest.FixtureRequest) -> NotebookNode:
    """As it is committed, and as it comes out now."""
    return _committed() if request.param == "committed" else request.getfixturevalue("anew")


def _committed() -> NotebookNode:
    return nbformat.read(_DEBUGGING, as_version=4)


def _cells(notebook: NotebookNode) -> dict[str, NotebookNode]:
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def _text(cell: NotebookNode) -> str:
    """Return all that a cell shows, as plain text."""
    return "\n".join(text for output in cell.outputs for text in _texts(output))


def _texts(output: NotebookNode) -> Iterator[str]:
    if output.output_type == "stream":
        yield output.text
    elif output.output_type == "error":
        yield re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.traceback))
    else:
        yield str(output.data.get("text/plain", ""))


def test_the_cells_that_fail_are_those_that_are_meant_to(notebook: NotebookNode) -> None:
    cells = _cells(notebook)
    assert [one.execution_count for one in cells.values()] == list(range(1, len(cells) + 1))
    failed = {
        name: output.ename
        for name, cell in cells.items()
        for output in cell.outputs
        if output.output_type == "error"
    }
    assert failed == _FAILING
    tagged = {name for name, cell in cells.items() if "raises-exception" in str(cell.metadata)}
    assert tagged == failed.keys()


def test_divergence_is_found_and_mended(notebook: NotebookNode) -> None:
    cells = _cells(notebook)
    assert len(set(re.findall(r"test loss ([\d.]+)", _text(cells["test"])))) > 1
    checked = _text(cells["check"])
    assert "1.running_mean (buffer) is not the same on all ranks: rank 0 / rank 1 / rank" in checked
    assert "call model.eval() before it" in checked
    differing = re.findall(r"^  (\S+) +rank 0 / rank 1", _text(cells["diff"]), re.MULTILINE)
    assert differing == ["1.running_mean", "1.running_var"]
    assert "optimizer is bit-identical on ranks 0-3" in _text(cells["diff-optimizer"])
    assert re.findall(r"^≠  (\w+)", _text(cells["vars"]), re.MULTILINE) == ["model"]
    mended = _text(cells["mended-check"])
    assert mended.count("test loss") == 1
    assert "the same on ranks 0-3" in mended


def test_who_waits_is_found_and_mended(notebook: NotebookNode) -> None:
    cells = _cells(notebook)
    waited = "rank 0 waited in all_reduce of [] int64 (line 11) in vain; ranks 1-3 had ended"
    assert cells["validation"].source.splitlines()[10] == "    dist.all_reduce(correct)"
    assert waited in _text(cells["validation"])
    assert "of the test images" in _text(cells["mended-validation"])
    assert "running" in _text(cells["reading"])
    where = _text(cells["where"])
    assert "ranks 0-1, 3 wait in barrier (line 11) for rank 2" in where
    assert "line 6, in read: time.sleep" in where
    assert "40 files have been read" in _text(cells["read"])


def test_the_sample_that_is_nan_is_found_and_mended(notebook: NotebookNode) -> None:
    cells = _cells(notebook)
    assert "train_x[608] = 0" in cells["nan-training"].source
    assert "loss nan\n" in _text(cells["nan-training"])
    found = _text(cells["anomaly"])
    assert "rank 1 failed with AnomalyError: the input of model (Sequential)" in found
    assert "(batch index 3 of 16, step 12, line 6)" in found
    nan = re.findall(r"rank (\d): .* NaN", _text(cells["nan-vars"]))
    assert nan == ["1"]
    assert "608" in _text(cells["pull"])
    assert "tensor([0.])" in _text(cells["suspect"])
    assert "the same on ranks 0-3" in _text(cells["mended-nan"])


def test_the_committed_outputs_are_those_of_today(anew: NotebookNode) -> None:
    committed, today = _cells(_committed()), _cells(anew)
    assert [one.source for one in committed.values()] == [one.source for one in today.values()]
    for name, cell in committed.items():
        assert _lasting(cell) == _lasting(today[name]), name


def _lasting(cell: NotebookNode) -> list[str]:
    """Return the lines that a cell shows, in any order, without what another run may change.

    That is: decimals (times, and what is computed), the numbers of collectives, where in torch an
    error was raised, and in how many lines it is told what was done to the cell.
    """
    lines = _text(cell).splitlines()
    raised = [n for n, line in enumerate(lines) if line.startswith("AnomalyError:")]
    lines = lines[raised[-1] :] if raised else lines
    masked = (re.sub(r"-?\d+\.\d+(e[-+]\d+)?|#\d+", "~", line) for line in lines)
    told = (line for line in masked if not line.startswith(("CPU times", "Wall time")))
    facts = {fact for line in told for fact in line.split(" · ")}
    return sorted(re.sub(r"\s+", " ", fact).strip() for fact in facts)


def test_committed_outputs_name_no_place_on_a_machine() -> None:
    cells = list(_cells(_committed()).values())
    outputs = nbformat.v4.new_notebook(cells=[NotebookNode({**c, "source": ""}) for c in cells])
    assert not re.findall(r"/(?:home|root|tmp|Users|mnt|work)/\S*", nbformat.writes(outputs))
    assert "-packages" not in nbformat.writes(outputs)


def test_nobody_can_be_asked_and_what_failed_is_told(notebook: NotebookNode) -> None:
    cells = _cells(notebook)
    passed_over = "breakpoint() on line 6 was passed over: this front end takes no input"
    assert passed_over in _text(cells["breakpoint"])
    assert "rank 1 failed with ValueError: a blank image" in _text(cells["failing"])
