"""What goes wrong in ``when_things_go_wrong.ipynb`` is told, mended, and leaves no trace."""

from __future__ import annotations

import re

import pytest
from nbformat import NotebookNode

from tests.notebook.committed import (
    NOTEBOOKS,
    check_failures,
    code_cells,
    committed,
    lasting,
    places,
    run_anew,
    text_of,
)

_NAME = "when_things_go_wrong.ipynb"
_FAILING = dict.fromkeys(("exception", "deadlock", "killed"), "CellError")
_WHEREVER_IT_WAS = {"interrupt", "stop-mended", "killed"}  # so what is told is not always the same
_KIB = 1024

pytestmark = pytest.mark.timeout(360)


@pytest.fixture(scope="module")
def anew() -> NotebookNode:
    return run_anew(_NAME)


@pytest.fixture(params=["committed", "anew"])
def notebook(request: pytest.FixtureRequest) -> NotebookNode:
    """As it is committed, and as it comes out now."""
    return committed(_NAME) if request.param == "committed" else request.getfixturevalue("anew")


@pytest.fixture
def shown(notebook: NotebookNode) -> dict[str, str]:
    """What each cell shows."""
    return {name: text_of(cell) for name, cell in code_cells(notebook).items()}


def test_the_cells_that_fail_are_those_that_are_meant_to(notebook: NotebookNode) -> None:
    check_failures(notebook, _FAILING)


def test_an_exception_is_told_with_who_waited(shown: dict[str, str]) -> None:
    assert re.search(r"^-+> \d+ +images.append\(np.frombuffer", shown["exception"], re.MULTILINE)
    failed, waited = shown["exception"].splitlines()[-2:]
    assert failed.startswith("ddp: rank 0 failed with ValueError: cannot reshape array of size 40")
    assert re.fullmatch(
        r"ddp: rank 1 waited in backward\(\).* in vain; rank 0 had ended the cell", waited
    )
    assert shown["exception-mended"].startswith("6 epochs, ")


def test_a_deadlock_is_found_and_mended(shown: dict[str, str]) -> None:
    assert re.search(r"rank 0 waited in all_reduce .* \(line 6\) in vain", shown["deadlock"])
    assert "[rank 1] " in shown["deadlock"]
    tested, reported = shown["deadlock-mended"].splitlines()
    assert re.fullmatch(r"\d\d\.\d% of the test images", tested)
    assert reported.startswith("8 epochs, ")


def test_what_runs_in_the_background_is_stopped(shown: dict[str, str]) -> None:
    assert "<BackgroundCell: running" in shown["stop"]
    assert "<BackgroundCell: stopped" in shown["interrupt"]
    assert "10 epochs, " in shown["stop-mended"]


def test_a_killed_rank_is_told_and_healed(shown: dict[str, str]) -> None:
    assert "ddp: rank 1 was killed by SIGKILL" in shown["killed"]
    assert re.search(r"^ddp: rank 0 (was|waited)", shown["killed"], re.MULTILINE)
    assert shown["survivor"].startswith("11 epochs, ")
    assert re.search(r"rank 1 is back with rank 0's .* 1 model and 1 optimizer", shown["heal"])


def test_the_training_is_that_to_which_nothing_has_happened(shown: dict[str, str]) -> None:
    assert shown["killed-mended"].startswith("12 epochs, ")
    assert shown["killed-mended"] == shown["undisturbed"].splitlines()[-1] + "\n"
    assert re.findall(r": (True|False)$", shown["same"], re.MULTILINE) == ["True", "True"]


def test_the_committed_outputs_are_those_of_today(anew: NotebookNode) -> None:
    then, today = code_cells(committed(_NAME)), code_cells(anew)
    assert [one.source for one in then.values()] == [one.source for one in today.values()]
    for name in then.keys() - _WHEREVER_IT_WAS:
        assert lasting(then[name]) == lasting(today[name]), name


def test_committed_outputs_are_small_and_name_no_place_on_a_machine() -> None:
    assert places(committed(_NAME)) == []
    assert (NOTEBOOKS / _NAME).stat().st_size < 200 * _KIB
