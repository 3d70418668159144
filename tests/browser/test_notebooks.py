"""Run All in JupyterLab over the notebooks that the quickstart's own tests do not run."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import nbformat
import pytest

from tests.browser.lab import Lab, NotebookPage
from tests.notebook.committed import NOTEBOOKS, check_failures, code_cells, committed

_RUN_S = 300.0
_NAMES = ("ddp_explained", "debugging", "fine_tuning", "when_things_go_wrong")
_PROMPT = ".jp-Stdin-input:not([data-answered])"

pytestmark = [pytest.mark.browser, pytest.mark.timeout(2 * _RUN_S)]


@pytest.mark.parametrize(
    "name", ["ddp_explained", "debugging", "fine_tuning", "when_things_go_wrong"]
)
def test_run_all(lab: Lab, shots: Path, name: str) -> None:
    before = committed(f"{name}.ipynb")
    failures = {
        cell_id: output.ename
        for cell_id, cell in code_cells(before).items()
        for output in cell.outputs
        if output.output_type == "error"
    }
    for cell in code_cells(before).values():
        cell.update(outputs=[], execution_count=None)
    nbformat.write(before, lab.root / f"{name}.ipynb")
    for module in NOTEBOOKS.glob("*.py"):
        shutil.copy(module, lab.root)
    page = lab.open(f"{name}.ipynb", dark=name == "debugging")
    page.run_all()
    _answer_until(page, max(i for i, c in enumerate(before.cells) if c.cell_type == "code"))
    page.page.set_viewport_size({"width": 1100, "height": 6000})
    page.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0")
    page.screenshot(shots / f"{name}.png")
    page.save()
    page.close()
    check_failures(nbformat.read(lab.root / f"{name}.ipynb", as_version=4), failures)


def _answer_until(page: NotebookPage, last: int) -> None:
    """Have debuggers that ask go on, until a cell has ended."""
    deadline_s = time.monotonic() + _RUN_S
    prompt = page.page.locator(_PROMPT)
    ended = f"document.querySelector('{_PROMPT}') || ({page.has_run(last)})"
    while True:
        page.wait_for(ended, deadline_s - time.monotonic())
        if not prompt.count():
            return
        prompt.fill("c")
        prompt.evaluate("box => { box.dataset.answered = true }")  # it stays for a moment
        page.page.keyboard.press("Enter")
