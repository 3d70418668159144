"""Looking into ranks, and talking to a debugger there, in JupyterLab."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.lab import Lab, NotebookPage, notebook

pytestmark = pytest.mark.browser

_VARIABLES = """%%ddp -n 4
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(8, 2)
scale = torch.ones(4, 4)
if rank == 2:
    with torch.no_grad():
        model.bias[0] += 0.5
    scale[0, 0] = float("nan")
seen = 10 * rank
print("ready")
"""
_STOPS = """%%ddp
def step(batch):
    total = batch.sum() + rank
    breakpoint()
    return total / len(batch)

mean = step(torch.arange(4.0))
print("mean", mean.item())
"""


@pytest.mark.parametrize("dark", [True], ids=["dark"])
def test_tables_show_what_differs(lab: Lab, shots: Path, dark: bool) -> None:
    theme = "dark" if dark else "light"
    text = notebook("%load_ext ddp_magic", _VARIABLES, "%ddp vars", "%ddp diff model")
    (lab.root / f"vars-{theme}.ipynb").write_text(text)
    page = lab.open(f"vars-{theme}.ipynb", dark=dark)
    page.run_all()
    table = page.output(2).get_by_role("table")
    expect(table.get_by_role("row", name="seen")).to_contain_text("30")
    expect(table.get_by_role("row", name="scale")).to_contain_text("1 NaN")
    expect(page.output(3)).to_contain_text("bias")
    page.output(3).scroll_into_view_if_needed()
    page.screenshot(shots / f"vars-{theme}.png")
    page.close()


def test_a_breakpoint_is_talked_to_in_the_cells_own_box(lab: Lab, shots: Path) -> None:
    text = notebook("%load_ext ddp_magic", "%%ddp -n 2\nimport torch\nprint('ready')", _STOPS)
    (lab.root / "stops.ipynb").write_text(text)
    page = lab.open("stops.ipynb")
    page.run_cell(0)
    page.run_cell(1)
    expect(page.output(1)).to_contain_text("ready")

    page.run_cell(2)
    output = page.output(2)
    expect(output).to_contain_text("ranks 0-1 have stopped at line 4")
    _type(page, output, "p total", "tensor(6.)")
    _type(page, output, "all total.item()", "[rank 1] 7.0")
    _type(page, output, "rank 1", "[rank 1] ipdb>")
    page.screenshot(shots / "breakpoint.png")
    _type(page, output, "c", "mean 1.5")
    expect(output).to_contain_text("[rank 1] mean 1.75")
    page.wait_until_run(2)

    page.run_cell(2)
    expect(output).to_contain_text("ranks 0-1 have stopped at line 4")
    _box(output).wait_for()
    page.page.get_by_role("button", name="Interrupt the kernel").click()
    expect(output).to_contain_text("KeyboardInterrupt")
    page.run_cell(1)
    expect(page.output(1)).to_contain_text("ready")
    page.screenshot(shots / "stopped-at-a-breakpoint.png")
    page.close()


def _box(output: Locator) -> Locator:
    return output.locator("input.jp-Stdin-input")


def _type(page: NotebookPage, output: Locator, line: str, shown: str) -> None:
    """Type a line into the box, and wait for what comes of it."""
    box = _box(output)
    expect(box).to_have_count(1)  # the one before may linger
    box.fill(line)
    box.press("Enter")
    expect(output).to_contain_text(shown)
