"""``fine_tuning.ipynb`` trains on two ranks, then on four, the model that one process trains."""

from __future__ import annotations

import re
import textwrap

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

_NAME = "fine_tuning.ipynb"
_COMPUTED = {"same"}  # what is heard may be another symbol on another processor
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


def _accuracy(shown: str) -> float:
    (per_cent,) = re.findall(r"^epoch \d: ([\d.]+)% of the test clips$", shown, re.MULTILINE)
    return float(per_cent) / 100


def test_no_cell_fails(notebook: NotebookNode) -> None:
    check_failures(notebook, {})
    outputs = [output for cell in code_cells(notebook).values() for output in cell.outputs]
    assert all(output.get("name") != "stderr" for output in outputs)


def test_batches_are_those_of_all_ranks(shown: dict[str, str]) -> None:
    assert "9,252 of 318,885 parameters" in shown["training"]
    assert re.search(r"batch 24 → 2 \S 12", shown["training"])
    assert re.search(r"batch 24 → 4 \S 6", shown["go-on"])
    assert "178,404 of 318,885 parameters" in shown["go-on"]


def test_a_checkpoint_of_two_ranks_goes_on_with_four(shown: dict[str, str]) -> None:
    assert shown["save"] == ""
    assert "epoch 3: " in shown["training"]
    assert "epoch 6: " in shown["go-on"]
    assert _accuracy(shown["go-on"]) > _accuracy(shown["training"]) > 0.4
    assert "tuning.model is bit-identical on ranks 0-3" in shown["diff"]


def test_one_process_trains_the_same_model(shown: dict[str, str]) -> None:
    assert _accuracy(shown["alone"]) == pytest.approx(_accuracy(shown["go-on"]), abs=0.02)
    difference, same, clips = map(float, re.findall(r"[\d.]+e-\d+|\d+", shown["same"]))
    assert difference < 0.01
    assert same > 0.98 * clips


def test_what_the_model_knew_before_is_of_use(shown: dict[str, str]) -> None:
    assert _accuracy(shown["go-on"]) > 0.7
    assert _accuracy(shown["scratch"]) < _accuracy(shown["go-on"]) - 0.1


def test_the_loop_that_is_shown_is_the_one_that_runs() -> None:
    (told,) = (cell.source for cell in committed(_NAME).cells if cell.id == "recipe")
    (loop,) = re.findall(r"```python\n(.*?)```", told, re.DOTALL)
    module = (NOTEBOOKS / "spoken_letters.py").read_text()
    assert textwrap.indent(loop, "    ") in module
    assert "ddp" not in module


def test_the_committed_outputs_are_those_of_today(anew: NotebookNode) -> None:
    then, today = code_cells(committed(_NAME)), code_cells(anew)
    assert [one.source for one in then.values()] == [one.source for one in today.values()]
    for name in then.keys() - _COMPUTED:
        assert lasting(then[name]) == lasting(today[name]), name


def test_committed_outputs_are_small_and_name_no_place_on_a_machine() -> None:
    assert places(committed(_NAME)) == []
    assert (NOTEBOOKS / _NAME).stat().st_size < 300 * _KIB
