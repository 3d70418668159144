"""A real kernel, and a client that sends it cells as JupyterLab does."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from jupyter_client.manager import start_new_kernel

_START_TIMEOUT_S = 60
_CELL_TIMEOUT_S = 120
_KERNEL_ARGUMENTS = ["--log-level=ERROR", "--HistoryManager.hist_file=:memory:"]
_HERE = str(Path(__file__).parent)


class Notebook:
    """A notebook without a page: what a page is sent is received, and its text kept.

    Its kernel runs in the folder of the benchmarks, so that cells can import what is there.

    Attributes
    ----------
    texts
        What the last cell left on the page, as plain text: of each stream, and of each display.
    widgets
        How many widgets the last cell has opened.
    """

    def __init__(self) -> None:
        self._manager, self._client = start_new_kernel(
            startup_timeout=_START_TIMEOUT_S,
            kernel_name="python3",
            cwd=_HERE,
            extra_arguments=_KERNEL_ARGUMENTS,
        )
        self.texts: dict[str, str] = {}
        self.widgets = 0

    def __enter__(self) -> Notebook:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel()

    def run(self, code: str) -> float:
        """Run a cell; return the seconds until all of its output is here.

        Raises
        ------
        RuntimeError
            If the cell fails.
        """
        content = {"code": code, "silent": False, "allow_stdin": False, "stop_on_error": True}
        # JupyterLab, Notebook and VS Code say which cell it is; whoever does gets widgets.
        metadata = {"cellId": "benchmark"}
        request = self._client.session.msg("execute_request", content, metadata=metadata)
        self.texts, self.widgets = {}, 0
        begin_s = time.perf_counter()
        self._client.shell_channel.send(request)
        while not self._receive(request["header"]["msg_id"]):
            pass
        took_s = time.perf_counter() - begin_s
        self._client.get_shell_msg(timeout=_CELL_TIMEOUT_S)
        return took_s

    def value(self, code: str) -> Any:
        """Run a cell and return the last line that it printed, as JSON."""
        self.run(code)
        return json.loads(self.texts["stdout"].splitlines()[-1])

    def _receive(self, request_id: str) -> bool:
        """Take one message; return whether the cell has ended."""
        message = self._client.get_iopub_msg(timeout=_CELL_TIMEOUT_S)
        if message["parent_header"].get("msg_id") != request_id:
            return False
        kind, content = message["msg_type"], message["content"]
        if kind == "error":
            raise RuntimeError("\n".join(content["traceback"]))
        if kind == "stream":
            name = content["name"]
            self.texts[name] = self.texts.get(name, "") + content["text"]
        elif kind in ("display_data", "update_display_data"):
            place = content["transient"].get("display_id", message["header"]["msg_id"])
            self.texts[place] = content["data"].get("text/plain", "")
        self.widgets += kind == "comm_open"
        return bool(content.get("execution_state") == "idle")
