"""Charts in real kernels: headless, and as a page sees their messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

DEADLINE_S = 60
WIDGET = "application/vnd.jupyter.widget-view+json"
# The chart draws when its clock says so: this one goes on alike however slow the machine is.
TRAIN = """
from ddp_magic.ui.panel import Panel
now = 0.0
chart = Panel(clock=lambda: now)
for step in range(200):
    chart.add({"loss": [(step, 1 / (step + 1))]})
    now += 0.01
"""
NO_WIDGET_LEFT = """
import gc
from ipywidgets.widgets import widget
assert not widget._instances
del chart
gc.collect()
assert not [one for one in gc.get_objects() if type(one).__name__ == "Figure"]
"""


def _notebook(*sources: str) -> nbformat.NotebookNode:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    return nbformat.v4.new_notebook(cells=cells)


def _execute(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    NotebookClient(notebook, timeout=DEADLINE_S, kernel_name="python3").execute()
    return notebook


def _displayed(cell: nbformat.NotebookNode) -> list[dict[str, Any]]:
    return [dict(out.data) for out in cell.outputs if out.output_type == "display_data"]


def test_headless_run_keeps_the_curve_and_no_widget() -> None:
    notebook = _execute(_notebook(f"{TRAIN}\nprint('after')\nchart.finish('2 ranks')"))
    (data,) = _displayed(notebook.cells[0])
    assert set(data) == {"text/html", "text/plain"}
    assert data["text/plain"].startswith("loss 1 → 0.0")
    assert data["text/plain"].endswith(" steps · 2 ranks")
    assert "widgets" not in notebook.metadata
    page, _ = HTMLExporter().from_notebook_node(notebook)
    assert 'src="data:image/svg+xml;base64,' in page


def test_cell_that_logs_nothing_shows_nothing() -> None:
    code = "from ddp_magic.ui.panel import Panel\nc = Panel(); c.add({}); c.finish()"
    assert _execute(_notebook(code)).cells[0].outputs == []


def test_cell_that_fails_keeps_what_was_seen() -> None:
    body = "\n".join("    " + line for line in TRAIN.splitlines())
    failing = f"try:\n{body}\n    1 / 0\nfinally:\n    chart.close()"
    notebook = _notebook(failing)
    with pytest.raises(CellExecutionError):
        _execute(notebook)
    (data,) = _displayed(notebook.cells[0])
    assert "data:image/svg+xml" in data["text/html"]


class Page:
    """A kernel's client that sends cells as JupyterLab does, and keeps the answers."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client

    def run(self, code: str) -> list[dict[str, Any]]:
        """Execute and return all messages on iopub; an error raises."""
        content = {"code": code, "silent": False, "allow_stdin": False, "stop_on_error": True}
        message = self._client.session.msg("execute_request", content, metadata={"cellId": "c1"})
        self._client.shell_channel.send(message)
        answers = []
        while True:
            answer = self._client.get_iopub_msg(timeout=DEADLINE_S)
            if answer["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            answers.append(answer)
            if answer["msg_type"] == "error":
                raise AssertionError("\n".join(answer["content"]["traceback"]))
            if answer["content"].get("execution_state") == "idle":
                return answers


@pytest.fixture
def page() -> Iterator[Page]:
    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=DEADLINE_S)
    yield Page(client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def _of(messages: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [message["content"] for message in messages if message["msg_type"] == kind]


def test_page_gets_a_widget_that_grows_and_then_a_picture(page: Page) -> None:
    messages = page.run(f"{TRAIN}\nchart.finish()")
    (shown,) = _of(messages, "display_data")
    model_id = shown["data"][WIDGET]["model_id"]
    assert "no widget is shown here" in shown["data"]["text/plain"]

    updates = [m for m in messages if m["content"].get("comm_id") == model_id]
    kinds = [m["msg_type"] for m in updates]
    assert kinds[0] == "comm_open"
    assert kinds[-1] == "comm_close"
    sizes = [sum(map(len, m["buffers"])) for m in updates if m["msg_type"] == "comm_msg"]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]

    (replaced,) = _of(messages, "update_display_data")
    assert replaced["transient"] == shown["transient"]
    assert "data:image/svg+xml" in replaced["data"]["text/html"]
    assert len(_of(messages, "comm_open")) == len(_of(messages, "comm_close"))
    page.run(NO_WIDGET_LEFT)


@pytest.mark.parametrize("missing", ["anywidget", "ipywidgets", "plotly"])
def test_missing_package_is_named_and_pictures_serve_instead(page: Page, missing: str) -> None:
    messages = page.run(f"import sys; sys.modules[{missing!r}] = None\n{TRAIN}\nchart.finish()")
    (shown,) = _of(messages, "display_data")
    assert missing in shown["data"]["text/plain"]
    assert "pip install plotly anywidget ipywidgets" in shown["data"]["text/plain"]
    last = _of(messages, "update_display_data")[-1]
    assert "data:image/svg+xml" in last["data"]["text/html"]
    assert "pip install" not in last["data"]["text/plain"]


def test_update_stays_small_however_long_the_run(page: Page) -> None:
    code = """
from ddp_magic.ui.panel import Panel
now = 0.0
chart = Panel(clock=lambda: now)
for block in range(1000):
    now += 1
    chart.add({"loss": [(1000 * block + i, float((i * 7919) % 101)) for i in range(1000)]})
chart.finish()
"""
    messages = page.run(code)
    sizes = [sum(map(len, m["buffers"])) for m in messages if m["msg_type"] == "comm_msg"]
    assert len(sizes) > 500
    assert max(sizes) < 30_000
    (still,) = _of(messages, "update_display_data")
    assert len(still["data"]["text/html"]) < 40_000
    assert "over 1,000,000 steps" in still["data"]["text/plain"]


@pytest.mark.parametrize("wait", [True, False])
def test_a_panel_outlives_a_cleared_output(wait: bool) -> None:
    code = f"""
from ddp_magic.ui.cellview import NotebookView
view = NotebookView(get_ipython())
view.points({{"loss": [(1, 2.0)]}})
view.text("stdout", "old")
view.clear_output({wait})
view.text("stdout", "new")
view.points({{"loss": [(2, 1.0)]}})
view.finish()
"""
    (cell,) = _execute(_notebook(code)).cells
    assert [out.get("text", "picture") for out in cell.outputs] == ["picture", "new"]
    assert "loss 2 → 1 over 2 steps" in _displayed(cell)[0]["text/plain"]
