"""Tab in a cell, in JupyterLab."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.lab import Lab, notebook

pytestmark = pytest.mark.browser


def test_tab_and_shift_tab_show_what_is_on_the_ranks(lab: Lab, shots: Path) -> None:
    text = notebook(
        "%load_ext ddp_magic\nweight_of_the_notebook = 1",
        "%%ddp -n 2\nfrom torch import nn\nmodel = nn.Sequential(nn.Linear(2, 3), nn.ReLU())\n"
        "weight_decay, weight_scale = 0.1, 2\nprint('ready')",
        "%%ddp\nweight_",
        "%%ddp\nmodel[0].forward",
    )
    (lab.root / "complete.ipynb").write_text(text)
    page = lab.open("complete.ipynb")
    page.run_cell(0)
    page.run_cell(1)
    expect(page.output(1)).to_contain_text("ready")

    completer = page.page.locator(".jp-Completer")
    page.edit_end(2)
    page.page.keyboard.press("Tab")
    expect(completer).to_contain_text("weight_decay")
    expect(completer).to_contain_text("weight_scale")
    expect(completer).not_to_contain_text("weight_of_the_notebook")
    page.screenshot(shots / "tab.png")
    page.page.keyboard.press("Escape")

    page.edit_end(3)
    page.page.keyboard.press("Shift+Tab")
    tooltip = page.page.locator(".jp-Tooltip")
    expect(tooltip).to_contain_text("Runs the forward pass.")
    page.screenshot(shots / "shift-tab.png")
    page.close()
