"""Stopping cells with the mouse, in JupyterLab."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.lab import DEADLINE_S, Lab, notebook

pytestmark = pytest.mark.browser
_DEADLINE_MS = DEADLINE_S * 1000


def test_the_button_stops_a_cell_in_the_background_and_the_toolbars_one_in_the_foreground(
    lab: Lab, shots: Path
) -> None:
    text = notebook(
        "%load_ext ddp_magic",
        "%%ddp -n 2 -b\nimport time\nprint('begun')\ntime.sleep(600)",
        "%%ddp\nkept = 7\nprint('again')\nwhile True: time.sleep(0.1)",
        "%%ddp\nprint('kept', kept)",
    )
    (lab.root / "stop.ipynb").write_text(text)
    page = lab.open("stop.ipynb")
    page.run_cell(0)
    page.run_cell(1)
    expect(page.output(1)).to_contain_text("begun", timeout=_DEADLINE_MS)
    button = page.output(1).get_by_role("button", name="Stop")
    button.click()
    expect(page.output(1)).to_contain_text("ranks 0-1 were interrupted", timeout=_DEADLINE_MS)
    expect(button).to_have_count(0)
    page.screenshot(shots / "stopped-by-its-button.png")

    page.run_cell(2)
    expect(page.output(2)).to_contain_text("again", timeout=_DEADLINE_MS)
    page.page.get_by_role("button", name="Interrupt the kernel").click()
    expect(page.output(2)).to_contain_text("KeyboardInterrupt", timeout=_DEADLINE_MS)
    page.run_cell(3)
    expect(page.output(3)).to_contain_text("kept 7", timeout=_DEADLINE_MS)
    page.screenshot(shots / "stopped.png")
    page.close()
