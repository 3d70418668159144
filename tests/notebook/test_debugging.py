"""The debugging notebook finds what it says, as it is committed and as it is run anew."""

from __future__ import annotations

import re

import pytest
from nbformat import NotebookNode

from tests.notebook.committed import (
    check_failures,
    code_cells,
    committed,
    lasting,
    places,
    run_anew,
    text_of,
)

_DEBUGGING = "debugging.ipynb"
_FAILING = {
    "check": "ParityError",
    "validation": "CellError",
    "anomaly": "CellError",
    "failing": "CellError",
}

pytestmark = pytest.mark.timeout(360)


@pytest.fixture(scope="module")
def anew() -> NotebookNode:
    return run_anew(_DEBUGGING)


@pytest.fixture(params=["committed", "anew"])
def notebook(request: pytest.FixtureRequest) -> NotebookNode:
    """As it is committed, and as it comes out now."""
    return (
        committed(_DEBUGGING) if request.param == "committed" else request.getfixturevalue("anew")
    )


def test_the_cells_that_fail_are_those_that_are_meant_to(notebook: NotebookNode) -> None:
    check_failures(notebook, _FAILING)


def test_divergence_is_found_and_mended(notebook: NotebookNode) -> None:
    cells = code_cells(notebook)
    assert len(set(re.findall(r"test loss ([\d.]+)", text_of(cells["test"])))) > 1
    checked = text_of(cells["check"])
    assert "1.running_mean (buffer) is not the same on all ranks: rank 0 / rank 1 / rank" in checked
    assert "call model.eval() before it" in checked
    differing = re.findall(r"^  (\S+) +rank 0 / rank 1", text_of(cells["diff"]), re.MULTILINE)
    assert differing == ["1.running_mean", "1.running_var"]
    assert "optimizer is bit-identical on ranks 0-3" in text_of(cells["diff-optimizer"])
    assert re.findall(r"^≠  (\w+)", text_of(cells["vars"]), re.MULTILINE) == ["model"]
    mended = text_of(cells["mended-check"])
    assert mended.count("test loss") == 1
    assert "the same on ranks 0-3" in mended


def test_who_waits_is_found_and_mended(notebook: NotebookNode) -> None:
    cells = code_cells(notebook)
    waited = "rank 0 waited in all_reduce of [] int64 (line 11) in vain; ranks 1-3 had ended"
    assert cells["validation"].source.splitlines()[10] == "    dist.all_reduce(correct)"
    assert waited in text_of(cells["validation"])
    assert "of the test images" in text_of(cells["mended-validation"])
    assert "running" in text_of(cells["reading"])
    where = text_of(cells["where"])
    assert "ranks 0-1, 3 wait in barrier (line 11) for rank 2" in where
    assert "line 6, in read: time.sleep" in where
    assert "40 files have been read" in text_of(cells["read"])


def test_the_sample_that_is_nan_is_found_and_mended(notebook: NotebookNode) -> None:
    cells = code_cells(notebook)
    assert "train_x[608] = 0" in cells["nan-training"].source
    assert "loss nan\n" in text_of(cells["nan-training"])
    found = text_of(cells["anomaly"])
    assert "rank 1 failed with AnomalyError: the input of model (Sequential)" in found
    assert "(batch index 3 of 16, step 12, line 6)" in found
    nan = re.findall(r"rank (\d): .* NaN", text_of(cells["nan-vars"]))
    assert nan == ["1"]
    assert "608" in text_of(cells["pull"])
    assert "tensor([0.])" in text_of(cells["suspect"])
    assert "the same on ranks 0-3" in text_of(cells["mended-nan"])


def test_the_committed_outputs_are_those_of_today(anew: NotebookNode) -> None:
    then, today = code_cells(committed(_DEBUGGING)), code_cells(anew)
    assert [one.source for one in then.values()] == [one.source for one in today.values()]
    for name, cell in then.items():
        assert lasting(cell) == lasting(today[name]), name


def test_committed_outputs_name_no_place_on_a_machine() -> None:
    assert places(committed(_DEBUGGING)) == []


def test_nobody_can_be_asked_and_what_failed_is_told(notebook: NotebookNode) -> None:
    cells = code_cells(notebook)
    passed_over = "breakpoint() on line 6 was passed over: this front end takes no input"
    assert passed_over in text_of(cells["breakpoint"])
    assert "rank 1 failed with ValueError: a blank image" in text_of(cells["failing"])
