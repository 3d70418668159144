"""The panel's buttons, pressed while the cell runs, in JupyterLab."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.lab import Lab, notebook

pytestmark = pytest.mark.browser

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
    expect(panel).to_contain_text("samples/s")
    expect(panel.get_by_role("listitem")).to_have_count(2)
    expect(panel).to_contain_text("waiting for gradients")
    expect(panel.get_by_role("progressbar")).to_be_visible()
    expect(panel.locator(".js-plotly-plot")).to_be_visible()
    page.screenshot(shots / f"panel-{theme}.png")

    panel.get_by_role("button", name="Where").focus()
    page.page.keyboard.press("Enter")
    expect(panel).to_contain_text(re.compile(r"In\[2\] line 1[0-5]: \w"))
    panel.get_by_label("log").check()
    panel.get_by_label("by").select_option("time")
    expect(panel).to_contain_text("seconds")
    page.screenshot(shots / f"panel-where-{theme}.png")
    assert page.running(1)

    panel.get_by_role("button", name="Stop").click()
    expect(output).to_contain_text("KeyboardInterrupt")
    expect(panel).to_have_count(0)
    expect(output.get_by_role("img")).to_be_visible()
    page.run_cell(2)
    expect(page.output(2)).to_contain_text("still 6400")
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
    expect(chips.nth(0)).to_contain_text("waits in barrier (line 6)")
    expect(chips.nth(1)).to_contain_text("runs")
    page.edit_end(2)
    before = chips.nth(0).inner_text()
    expect(chips.nth(0)).not_to_have_text(before)  # the panel goes on
    page.page.keyboard.type("  # and the focus stays")
    expect(page.cell(2)).to_contain_text("print('free')  # and the focus stays")
    page.run_cell(2)
    expect(page.output(2)).to_contain_text("free")
    page.screenshot(shots / "panel-waits.png")
    output.get_by_role("button", name="Where").focus()
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Space")
    expect(output).to_contain_text("KeyboardInterrupt")
    page.close()


def test_a_kernel_that_is_restarted_leaves_a_panel_that_says_so(lab: Lab, shots: Path) -> None:
    (lab.root / "gone.ipynb").write_text(notebook("%load_ext ddp_magic\n%ddp start -n 2", _TRAINS))
    page = lab.open("gone.ipynb")
    page.run_cell(0)
    page.run_cell(1)
    panel = page.output(1).get_by_role("region", name="Ranks of the running cell")
    expect(panel).to_contain_text("samples/s")
    page.restart_kernel()
    expect(panel).to_contain_text("The kernel has ended or was restarted")
    expect(panel.get_by_role("button", name="Stop")).to_be_disabled()
    page.screenshot(shots / "panel-gone.png")
    page.close()


_SIXTY_FOUR = """
import math, time
from pathlib import Path
from ddp_magic.core.runstate import Doing, RankState, RunState
from ddp_magic.ui.controls import Controls
from ddp_magic.ui.panel import Panel

ranks = {rank: RankState(Doing.RUNS) for rank in range(64)}
ranks[9] = RankState(Doing.WAITS, "in all_reduce (line 12), 14 s")
ranks[17] = RankState(Doing.DIED, "was killed by SIGKILL")
panel = Panel(controls=Controls(lambda: None, lambda: "nowhere"))
step = 0
while not Path("many.stop").exists():
    panel.add({"loss": [(step, math.exp(-step / 50))]})
    panel.show_state(RunState(ranks, step, step / 20, 512, 20.0, 10240.0, 0.12, 3 * 2**30))
    step += 1
    time.sleep(0.05)
panel.finish()
"""


@pytest.mark.parametrize("dark", [True], ids=["dark"])
def test_sixty_four_ranks_are_legible(lab: Lab, shots: Path, dark: bool) -> None:
    theme = "dark" if dark else "light"
    stop = lab.root / "many.stop"
    stop.unlink(missing_ok=True)
    (lab.root / f"many-{theme}.ipynb").write_text(notebook(_SIXTY_FOUR))
    page = lab.open(f"many-{theme}.ipynb", dark=dark)
    page.run_cell(0)
    panel = page.output(0).get_by_role("region", name="Ranks of the running cell")
    expect(panel).to_contain_text("rank 17 died: was killed by SIGKILL")
    chips = panel.get_by_role("listitem")
    expect(chips).to_have_count(64)
    expect(chips.nth(9)).to_have_attribute(
        "aria-label", "rank 9 waits in all_reduce (line 12), 14 s"
    )
    box = panel.bounding_box()
    assert box is not None
    assert box["height"] < 520
    page.screenshot(shots / f"panel-64-{theme}.png")
    stop.touch()
    page.wait_until_run(0)
    page.close()


def test_a_page_that_is_loaded_again_comes_back_to_the_panel(lab: Lab, shots: Path) -> None:
    (lab.root / "again.ipynb").write_text(
        notebook("%load_ext ddp_magic\n%ddp start -n 2", _TRAINS.replace("%%ddp", "%%ddp -b"))
    )
    page = lab.open("again.ipynb")
    page.run_cell(0)
    page.run_cell(1)
    expect(page.output(1)).to_contain_text("samples/s")
    page.save()
    panel = page.output(1).get_by_role("region", name="Ranks of the running cell")
    # JupyterLab's widget manager gives up on a model for which a busy page took over two seconds.
    missed = page.output(1).get_by_text("model not found")
    for _ in range(5):
        page.page.reload()
        expect(panel.or_(missed)).to_be_visible()
        if panel.is_visible():
            break
    expect(panel).to_contain_text("samples/s")
    before = panel.inner_text()
    expect(panel).not_to_have_text(before)
    page.screenshot(shots / "panel-reloaded.png")
    panel.get_by_role("button", name="Stop").click()
    expect(panel).to_have_count(0)
    page.close()
