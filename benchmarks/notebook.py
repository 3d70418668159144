"""A real kernel, and a client that sends it cells as JupyterLab does."""

from __future__ import annotations

import json
import queue
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from jupyter_client import BlockingKernelClient, KernelManager

_START_TIMEOUT_S = 60
_CELL_TIMEOUT_S = 120
_KERNEL_ARGUMENTS = ["--log-level=ERROR", "--HistoryManager.hist_file=:memory:"]
_HERE = str(Path(__file__).parent)


class Page:
    """What a page does: it sends cells to a kernel, receives what a page is sent, keeps its text.

    Parameters
    ----------
    client
        Its channels have been started.

    Attributes
    ----------
    texts
        What the last cells left on the page, as plain text: of each stream, and of each display.
    widgets
        How many widgets the last cells have opened.
    """

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client
        self._running: list[str] = []
        self.texts: dict[str, str] = {}
        self.widgets = 0

    def run(self, *cells: str) -> float:
        """Run cells, sent at once; return the seconds until all of their output is here.

        Raises
        ------
        RuntimeError
            If a cell fails.
        """
        begin_s = time.perf_counter()
        self.begin(*cells)
        self.end()
        took_s = time.perf_counter() - begin_s
        for _ in cells:
            self._client.get_shell_msg(timeout=_CELL_TIMEOUT_S)
        return took_s

    def begin(self, *cells: str) -> None:
        """Send cells."""
        self.texts, self.widgets, self._running = {}, 0, []
        for code in cells:
            content = {"code": code, "silent": False, "allow_stdin": False, "stop_on_error": True}
            # JupyterLab, Notebook and VS Code say which cell it is; whoever does gets widgets.
            metadata = {"cellId": "benchmark"}
            request = self._client.session.msg("execute_request", content, metadata=metadata)
            self._running.append(request["header"]["msg_id"])
            self._client.shell_channel.send(request)

    def end(self, text: str = "", patience_s: float = _CELL_TIMEOUT_S) -> None:
        """Wait until the cells have ended, or ``text`` has been printed.

        Raises
        ------
        TimeoutError
            Not within ``patience_s``.
        RuntimeError
            A cell fails; its end may be waited for after that.
        """
        deadline_s = time.monotonic() + patience_s
        while self._running and not (text and text in "".join(self.texts.values())):
            self._receive(max(0.0, deadline_s - time.monotonic()))

    def value(self, code: str) -> Any:
        """Run a cell and return the last line that it printed, as JSON."""
        self.run(code)
        return json.loads(self.texts["stdout"].splitlines()[-1])

    def _receive(self, patience_s: float) -> None:
        """Take one message."""
        try:
            message = self._client.get_iopub_msg(timeout=patience_s)
        except queue.Empty:
            raise TimeoutError("no message came") from None
        request_id = message["parent_header"].get("msg_id")
        if request_id not in self._running:
            return
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
        if content.get("execution_state") == "idle":
            self._running.remove(request_id)


class Notebook(Page):
    """A kernel of its own with a page.

    It runs in the folder of the benchmarks, so that cells can import what is there.

    Parameters
    ----------
    python
        The interpreter that runs the kernel; by default this one.
    environment
        All that its environment has; by default as this process.
    folder
        Another folder to run in.
    """

    def __init__(
        self,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        folder: str = _HERE,
    ) -> None:
        self._manager = KernelManager(kernel_name="python3")
        self._manager.kernel_spec.argv[0] = python
        self._manager.start_kernel(
            extra_arguments=_KERNEL_ARGUMENTS,
            cwd=folder,
            **({} if environment is None else {"env": dict(environment)}),
        )
        client = self._manager.client()
        client.start_channels()
        super().__init__(client)
        try:
            client.wait_for_ready(timeout=_START_TIMEOUT_S)
        except RuntimeError:
            self.__exit__(None, None, None)
            raise

    def stop(self) -> None:
        """Press Stop."""
        self._manager.interrupt_kernel()

    @property
    def pid(self) -> int:
        """The kernel's process id."""
        return int(self._manager.provisioner.pid)

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
