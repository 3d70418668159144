"""The panel's buttons, pressed while the cell runs, in JupyterLab."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.lab import DEADLINE_S, Lab, notebook

pytestmark = pytest.mark.browser
_DEADLINE_MS = DEADLINE_S * 1000

_TRAINS = """%%ddp
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(6400, 16)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
while True:
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
_WAITS = """%%ddp
import time
import torch.distributed as dist
if rank == 1:
    time.sleep(600)
dist.barrier()
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_busy_cell_tells_where_it_is_and_is_stopped(lab: Lab, shots: Path, dark: bool) -> None:
    theme = "dark" if dark else "light"
    (lab.root / f"busy-{theme}.ipynb").write_text(
        notebook("%load_ext ddp_magic\n%ddp start -n 2", _TRAINS, "%%ddp\nprint('still', len(x))")
    )
    page = lab.open(f"busy-{theme}.ipynb", dark=dark)
    page.run_cell(0)
    page.run_cell(1)
    output = page.output(1)
    panel = output.get_by_role("region", name="Ranks of the running cell")
    expect(panel).to_contain_text("samples/s", timeout=_DEADLINE_MS)
    expect(panel.get_by_role("listitem")).to_have_count(2)
    expect(panel).to_contain_text("waiting for gradients")
    expect(panel.get_by_role("progressbar")).to_be_visible()
    expect(panel.locator(".js-plotly-plot")).to_be_visible()
    page.screenshot(shots / f"panel-{theme}.png")

    panel.get_by_role("button", name="Where").click()
    expect(panel).to_contain_text("loss.backward()", timeout=_DEADLINE_MS)
    panel.get_by_label("log").check()
    panel.get_by_label("by").select_option("time")
    expect(panel).to_contain_text("seconds")
    page.screenshot(shots / f"panel-where-{theme}.png")
    assert page.running(1)

    panel.get_by_role("button", name="Stop").click()
    expect(output).to_contain_text("KeyboardInterrupt", timeout=_DEADLINE_MS)
    expect(panel).to_have_count(0)
    expect(output.get_by_role("img")).to_be_visible()
    page.run_cell(2)
    expect(page.output(2)).to_contain_text("still 6400", timeout=_DEADLINE_MS)
    page.screenshot(shots / f"panel-folded-{theme}.png")
    page.close()


def test_a_rank_that_waits_is_told_from_one_that_runs(lab: Lab, shots: Path) -> None:
    background = _WAITS.replace("%%ddp", "%%ddp -b")
    (lab.root / "waits.ipynb").write_text(
        notebook("%load_ext ddp_magic\n%ddp start -n 2", background, "print('free')")
    )
    page = lab.open("waits.ipynb")
    page.run_cell(0)
    page.run_cell(1)
    output = page.output(1)
    chips = output.get_by_role("listitem")
    expect(chips.nth(0)).to_contain_text("waits in barrier (line 6)", timeout=_DEADLINE_MS)
    expect(chips.nth(1)).to_contain_text("runs")
    page.run_cell(2)
    expect(page.output(2)).to_contain_text("free", timeout=_DEADLINE_MS)
    page.screenshot(shots / "panel-waits.png")
    output.get_by_role("button", name="Stop").click()
    expect(output).to_contain_text("KeyboardInterrupt", timeout=_DEADLINE_MS)
    page.close()
