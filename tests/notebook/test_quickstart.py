"""The quickstart, as it is committed and run anew by `make demo` and papermill."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

_NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
_QUICKSTART = _NOTEBOOKS / "quickstart.ipynb"
_DEADLINE_S = 300
_STILL = '<img alt="loss '

pytestmark = pytest.mark.timeout(_DEADLINE_S + 60)


@dataclass(frozen=True)
class Demo:
    """What `make demo` prints and writes."""

    printed: str
    folder: Path

    @property
    def notebook(self) -> NotebookNode:
        return nbformat.read(self.folder / _QUICKSTART.name, as_version=4)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    return Demo(_run(str(_NOTEBOOKS / "demo.py"), str(folder)), folder)


def _run(*arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=_DEADLINE_S
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _committed() -> NotebookNode:
    return nbformat.read(_QUICKSTART, as_version=4)


def _code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in _code_cells(notebook) for output in cell.outputs]


def _check(notebook: NotebookNode) -> None:
    """Hold a notebook that has run to what it shows."""
    cells = _code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = _outputs(notebook)
    assert all(output.output_type in ("stream", "display_data") for output in outputs)
    assert all(output.get("name") != "stderr" for output in outputs)
    assert _accuracy(notebook) > 0.97
    (curve,) = (o for o in outputs if "<img" in o.get("data", {}).get("text/html", ""))
    assert curve.data["text/html"].startswith(_STILL)
    assert "data:image/svg+xml;base64," in curve.data["text/html"]
    assert re.fullmatch(r"loss \S+ → \S+ over \d+ steps · \S+ s", curve.data["text/plain"])


def _accuracy(notebook: NotebookNode) -> float:
    printed = "".join(output.get("text", "") for output in _outputs(notebook))
    (per_cent,) = re.findall(r"^Test accuracy: ([\d.]+)%$", printed, re.MULTILINE)
    return float(per_cent) / 100


@pytest.mark.parametrize("place", ["committed", "demo"])
def test_shows_its_curve_and_its_accuracy(place: str, request: pytest.FixtureRequest) -> None:
    _check(_committed() if place == "committed" else request.getfixturevalue("demo").notebook)


def test_demo_prints_the_result_and_writes_a_page(demo: Demo) -> None:
    assert f"Test accuracy: {_accuracy(demo.notebook):.1%}\n" in demo.printed
    assert re.search(r"^loss \S+ → \S+ over \d+ steps", demo.printed, re.MULTILINE)
    page = demo.folder / "quickstart.html"
    assert str(page) in demo.printed
    assert _STILL in page.read_text()


def test_running_it_anew_changes_no_code_and_adds_no_metadata(demo: Demo) -> None:
    committed, anew = _committed(), demo.notebook
    for notebook in (committed, anew):
        assert set(notebook.metadata) == {"kernelspec", "language_info"}
        assert not any(cell.metadata for cell in notebook.cells)
    sources, sources_anew = ([(c.id, c.source) for c in n.cells] for n in (committed, anew))
    assert sources == sources_anew


def test_committed_outputs_name_no_place_on_a_machine() -> None:
    outputs = nbformat.v4.new_notebook(cells=_code_cells(_committed()))
    assert not re.findall(r"/(?:home|root|tmp|Users|mnt)/\S*", nbformat.writes(outputs))


def test_papermill_runs_it(tmp_path: Path) -> None:
    notebook = _committed()
    (training,) = (cell for cell in notebook.cells if cell.id == "training")
    assert "range(30)" in training.source
    training.source = training.source.replace("range(30)", "range(1)")
    source, result = tmp_path / "source.ipynb", tmp_path / "result.ipynb"
    nbformat.write(notebook, source)
    _run("-m", "papermill", "--no-progress-bar", str(source), str(result))
    outputs = _outputs(nbformat.read(result, as_version=4))
    assert any(_STILL in output.get("data", {}).get("text/html", "") for output in outputs)
