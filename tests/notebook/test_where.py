"""``%ddp where`` and ``%ddp status`` while the kernel's main thread waits for a cell."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.notebook.conftest import Message, Notebook

_DEADLINE_S = 30


class Subshell:
    """Runs code in a thread of the kernel beside its main one, as JupyterLab's consoles can."""

    def __init__(self, notebook: Notebook) -> None:
        # Of its own: a client reads from one thread alone, and the main shell's cell goes on.
        self._client = notebook.manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=_DEADLINE_S)
        self._id = self._control("create_subshell_request", {})["subshell_id"]

    def run(self, source: str) -> Message:
        """Run a cell, and return its result's data."""
        request = self._client.session.msg("execute_request", _execute(source))
        request["header"]["subshell_id"] = self._id
        self._client.shell_channel.send(request)
        until_s = time.monotonic() + _DEADLINE_S
        data: Message = {}
        while time.monotonic() < until_s:
            message = self._client.get_iopub_msg(timeout=_DEADLINE_S)
            if message["parent_header"].get("msg_id") != request["header"]["msg_id"]:
                continue
            assert message["msg_type"] != "error", message["content"]
            data = message["content"].get("data", data)
            if message["content"].get("execution_state") == "idle":
                return data
        raise TimeoutError(source)

    def close(self) -> None:
        """End the thread."""
        self._control("delete_subshell_request", {"subshell_id": self._id})
        self._client.stop_channels()

    def _control(self, kind: str, content: dict[str, Any]) -> Message:
        request = self._client.session.msg(kind, content)
        self._client.control_channel.send(request)
        reply: Message = self._client.get_control_msg(timeout=_DEADLINE_S)
        assert reply["content"]["status"] == "ok"
        return reply["content"]


def _execute(source: str) -> dict[str, Any]:
    return {
        "code": source,
        "silent": False,
        "store_history": False,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": True,
    }


@contextmanager
def subshell(notebook: Notebook) -> Iterator[Subshell]:
    made = Subshell(notebook)
    try:
        yield made
    finally:
        made.close()


def test_where_no_cell_runs(notebook: Notebook) -> None:
    output = notebook.run("%ddp where")
    assert output.data("text/plain") == ["no cell runs; ranks 0-1 are ready"]
    assert output.data("text/html") == ["<p>no cell runs; ranks 0-1 are ready</p>"]
    assert "there is no rank 5" in notebook.run("%ddp where -r 5").error["evalue"]


def test_a_subshell_sees_where_a_cell_in_the_foreground_waits(
    notebook: Notebook, tmp_path: Path
) -> None:
    seen: list[Message] = []
    go = tmp_path / "go"

    def look(message: Message) -> None:
        if "begun" not in message["content"].get("text", "") or seen:
            return
        try:
            until_s = time.monotonic() + _DEADLINE_S
            while time.monotonic() < until_s:
                data = beside.run("%ddp where")
                if "rank 0 waits in" in data["text/plain"]:
                    break
            seen.extend([data, beside.run("%ddp status")])
        finally:
            go.touch()

    with subshell(notebook) as beside:
        output = notebook.run(
            "%%ddp\nimport os, time, torch, torch.distributed as dist\n"
            "ddp.print('begun', flush=True)\n"
            "if rank == 1:\n"
            f"    while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
            "dist.all_reduce(torch.ones(4))\nddp.print('<over>')",
            on_output=look,
        )
    assert output.text() == "begun\n<over>\n"
    where, status = seen
    number = where["text/plain"].partition(" ")[0]
    assert f"    {number} line 6: dist.all_reduce(torch.ones(4))\n" in where["text/plain"]
    assert f"    {number} line 5: while not os.path.exists(" in where["text/plain"]
    assert "<details><summary" in where["text/html"]
    assert "if rank == 1" not in where["text/html"]
    assert status["text/plain"].count("running") == 3
