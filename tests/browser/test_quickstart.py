"""The quickstart in JupyterLab: run from the top, saved, and opened again without a kernel."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from playwright.sync_api import Locator, ViewportSize, expect

from tests.browser.lab import Lab, NotebookPage
from tests.browser.test_panel import INK, POINTS

_QUICKSTART = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"
_EPOCHS = "range(30)"
_RUN_S = 180.0
_PANEL = "window.jupyterapp.shell.currentWidget.content"
# Notes, on the page itself, how many points the live curve shows while its cell runs.
_WATCH = f"""index => {{
    window.seen = [];
    setInterval(() => {{
        const points = ({POINTS})();
        const running = {_PANEL}.widgets[index].model.executionState === "running";
        if (running && points > (window.seen.at(-1) ?? 0)) window.seen.push(points);
    }}, 50);
}}"""
# The whole notebook: JupyterLab draws what is in view.
_TALL: ViewportSize = {"width": 1100, "height": 2400}

pytestmark = [pytest.mark.browser, pytest.mark.timeout(2 * _RUN_S)]


def _index(notebook: NotebookNode, name: str) -> int:
    return next(i for i, cell in enumerate(notebook.cells) if cell.id == name)


def _to_be_run(notebook: NotebookNode) -> str:
    """Return the notebook without outputs, its training long enough to be watched."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    training = notebook.cells[_index(notebook, "training")]
    assert _EPOCHS in training.source
    training.source = training.source.replace(_EPOCHS, "range(90)")
    return nbformat.writes(notebook)


def _open(lab: Lab, name: str, **options: bool) -> NotebookPage:
    page = lab.open(name, **options)
    page.page.set_viewport_size(_TALL)
    return page


def _shows_the_curve(output: Locator) -> bool:
    picture = output.locator("img")
    expect(picture).to_be_visible()
    return int(picture.evaluate(INK)) > 500


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_quickstart_runs_and_shows_its_curve(lab: Lab, shots: Path, theme: str) -> None:
    name = f"quickstart-{theme}.ipynb"
    notebook = nbformat.read(_QUICKSTART, as_version=4)
    training, test = _index(notebook, "training"), _index(notebook, "test")
    (lab.root / name).write_text(_to_be_run(notebook))
    page = _open(lab, name, dark=theme == "dark")

    page.evaluate(_WATCH, training)
    page.run_all()
    page.wait_for("window.seen.length >= 2", _RUN_S)  # it has grown
    page.screenshot(shots / f"quickstart-{theme}-running.png")
    assert page.running(training)

    page.wait_until_run(_index(notebook, "parameters"), _RUN_S)
    print("points seen while the cell ran:", page.evaluate("window.seen"))
    assert _shows_the_curve(page.output(training))
    expect(page.output(test)).to_contain_text("Test accuracy: 9")
    page.screenshot(shots / f"quickstart-{theme}-finished.png")
    page.save()
    page.close()
    assert "widgets" not in nbformat.read(lab.root / name, as_version=4).metadata

    page = _open(lab, name, kernel=False, dark=theme == "dark")
    assert not page.has_kernel
    assert _shows_the_curve(page.output(training))
    page.screenshot(shots / f"quickstart-{theme}-reopened.png")
    page.close()


def test_committed_quickstart_shows_its_curve_before_it_is_run(lab: Lab, shots: Path) -> None:
    (lab.root / "committed.ipynb").write_bytes(_QUICKSTART.read_bytes())
    training = _index(nbformat.read(_QUICKSTART, as_version=4), "training")
    page = _open(lab, "committed.ipynb", kernel=False)
    assert not page.trusted(training)
    assert _shows_the_curve(page.output(training))
    page.screenshot(shots / "quickstart-committed.png")
    page.close()
