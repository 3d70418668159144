"""The loss curve in JupyterLab: alive while the cell is busy, a picture ever after."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.lab import DEADLINE_S, Lab, NotebookPage, notebook

pytestmark = pytest.mark.browser

TRAIN = """
import math, random, time
from pathlib import Path
from ddp_magic.ui.panel import Panel

random.seed(0)
chart = Panel()
step = 0
while not ({until}):
    points = []
    for _ in range(20):
        loss = 0.15 + 2.3 * math.exp(-step / 400) + 0.1 * random.random()
        points.append((step, loss))
        step += 1
    {also}
    chart.add({{"loss": points}})
    time.sleep(0.05)
chart.finish("2 ranks")
"""
ACCURACY = 'chart.add({"accuracy": [(step, 1 - 0.9 * math.exp(-step / 300))]})'
POINTS = """() => {
    const plot = document.querySelector(".js-plotly-plot");
    return plot?.data ? Math.max(0, ...plot.data.map(trace => trace.x.length)) : 0;
}"""
# How many pixels of an image, as the page draws it, have the first curve's color.
INK = """async image => {
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0, image.width, image.height);
    const { data } = context.getImageData(0, 0, image.width, image.height);
    let count = 0;
    for (let i = 0; i < data.length; i += 4)
        count += data[i + 3] > 200 && Math.abs(data[i] - 0x3b) + Math.abs(data[i + 2] - 0xf6) < 30;
    return count;
}"""


def _training(until: str, also: str = "") -> str:
    return TRAIN.format(until=until, also=also)


def _wait_for_points(page: NotebookPage, more_than: int) -> int:
    page.wait_for(f"({POINTS})() > {more_than}")
    return int(page.evaluate(POINTS))


def _shows_the_curve(output: Locator) -> bool:
    picture = output.locator("img")
    expect(picture).to_be_visible()
    return int(picture.evaluate(INK)) > 500


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_curve_grows_while_the_cell_is_busy_and_stays_in_the_file(
    lab: Lab, shots: Path, theme: str
) -> None:
    name, stop = f"{theme}.ipynb", lab.root / f"{theme}.stop"
    stops = f"Path({stop.name!r}).exists()"
    (lab.root / name).write_text(notebook(_training(stops), _training("step >= 600", ACCURACY)))
    page = lab.open(name, dark=theme == "dark")

    page.run_cell(0)
    seen = _wait_for_points(page, more_than=0)
    seen = _wait_for_points(page, more_than=seen)
    _wait_for_points(page, more_than=max(seen, 500))
    assert page.running(0)
    page.screenshot(shots / f"{theme}-running.png")

    stop.touch()
    page.wait_until_run(0)
    assert _shows_the_curve(page.output(0))
    expect(page.output(0).locator(".js-plotly-plot")).to_have_count(0)
    page.screenshot(shots / f"{theme}-finished.png")
    page.run_cell(1)
    page.wait_until_run(1)
    page.save()
    page.close()

    saved = nbformat.read(lab.root / name, as_version=4)
    assert "widgets" not in saved.metadata
    assert [set(out.data) for out in saved.cells[0].outputs] == [{"text/html", "text/plain"}]

    page = lab.open(name, kernel=False, dark=theme == "dark")
    assert not page.has_kernel
    assert _shows_the_curve(page.output(0))
    assert _shows_the_curve(page.output(1))
    page.screenshot(shots / f"{theme}-reopened.png")
    page.close()


@pytest.fixture(scope="module")
def executed_elsewhere(lab: Lab) -> Path:
    """A notebook that nbconvert has run: JupyterLab does not trust its outputs."""
    path = lab.root / "elsewhere.ipynb"
    path.write_text(notebook(_training("step >= 400", ACCURACY)))
    _nbconvert(path, "--execute", "--inplace", "--to=notebook")
    return path


def _nbconvert(path: Path, *options: str) -> None:
    command = [sys.executable, "-m", "nbconvert", *options, str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)


def test_notebook_that_is_not_trusted_shows_the_curve(
    lab: Lab, executed_elsewhere: Path, shots: Path
) -> None:
    page = lab.open(executed_elsewhere.name, kernel=False)
    assert not page.trusted(0)
    assert _shows_the_curve(page.output(0))
    page.screenshot(shots / "untrusted.png")
    page.close()


def test_nbconvert_html_shows_the_curve(
    browser: Browser, executed_elsewhere: Path, shots: Path
) -> None:
    _nbconvert(executed_elsewhere, "--to=html")
    page = browser.new_page(offline=True)
    page.goto(executed_elsewhere.with_suffix(".html").as_uri(), wait_until="domcontentloaded")
    assert _shows_the_curve(page.locator(".jp-OutputArea").first)
    (shots / "nbconvert.png").write_bytes(page.screenshot())
    page.close()


def test_page_without_widgets_says_so_until_the_picture_comes(lab: Lab) -> None:
    """What a frontend that knows no widgets shows: the text beside the widget."""
    stop = lab.root / "plain.stop"
    source = _training(f"Path({stop.name!r}).exists()")
    (lab.root / "plain.ipynb").write_text(notebook(source))
    page = lab.open("plain.ipynb")
    page.evaluate(
        "window.jupyterapp.shell.currentWidget.content.rendermime"
        ".removeMimeType('application/vnd.jupyter.widget-view+json')"
    )
    page.run_cell(0)
    expect(page.output(0)).to_contain_text("no widget is shown here")
    stop.touch()
    page.wait_until_run(0)
    assert _shows_the_curve(page.output(0))
    page.close()
