"""`%ddp doctor` in JupyterLab: the page tells whether it runs widgets."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.lab import Lab, notebook

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_answers(lab: Lab, shots: Path, dark: bool) -> None:
    name = f"doctor-{dark}.ipynb"
    (lab.root / name).write_text(notebook("%load_ext ddp_magic", "%ddp doctor"))
    page = lab.open(name, dark=dark)
    page.run_all()
    output = page.output(1)
    expect(output).to_contain_text("the page has run one")
    expect(output).to_contain_text("ask below the cell")
    expect(output).not_to_contain_text("shows no widgets")
    page.screenshot(shots / f"doctor-{'dark' if dark else 'light'}.png")
    page.save()
    page.close()
    saved = nbformat.read(lab.root / name, as_version=4)
    assert "widgets" not in saved.metadata
    assert "widget-view" not in nbformat.writes(saved)
