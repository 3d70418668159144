"""A real Jupyter kernel, driven as a frontend drives it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

_DEADLINE_S = 90

Message = dict[str, Any]


@dataclass
class CellOutput:
    """What a cell left in the notebook."""

    status: str = ""
    outputs: list[Message] = field(default_factory=list)

    def text(self, stream: str = "stdout") -> str:
        """All that was printed on a stream."""
        streams = (o for o in self.outputs if o["msg_type"] == "stream")
        return "".join(o["content"]["text"] for o in streams if o["content"]["name"] == stream)

    def data(self, mime: str) -> list[Any]:
        """The rich outputs of one type."""
        bundles = [o["content"]["data"] for o in self.outputs if "data" in o["content"]]
        return [bundle[mime] for bundle in bundles if mime in bundle]

    @property
    def error(self) -> Message:
        """The error's content."""
        return next(o["content"] for o in self.outputs if o["msg_type"] == "error")


class Completions(NamedTuple):
    """What Tab offers, and what it stands for."""

    matches: list[str]
    start: int
    end: int


class Notebook:
    """Runs cells in a kernel of its own."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self._client = client

    def run(
        self,
        source: str,
        on_output: Callable[[Message], None] | None = None,
        deadline_s: float = _DEADLINE_S,
    ) -> CellOutput:
        """Run a cell to its end; ``on_output`` sees each output as it comes.

        Raises
        ------
        TimeoutError
            The prompt does not come back.
        """
        output = CellOutput()

        def keep(message: Message) -> None:
            if message["msg_type"] in (
                "stream",
                "display_data",
                "execute_result",
                "error",
                "update_display_data",
            ):
                output.outputs.append(message)
                if on_output is not None:
                    on_output(message)

        reply = self._client.execute_interactive(
            source, timeout=deadline_s, output_hook=keep, allow_stdin=False
        )
        output.status = reply["content"]["status"]
        return output

    def complete(self, code: str) -> Completions:
        """Press Tab at the end of some code."""
        reply = self._client.complete(code, len(code), reply=True, timeout=_DEADLINE_S)
        content = reply["content"]
        return Completions(content["matches"], content["cursor_start"], content["cursor_end"])

    def inspect(self, code: str, detail_level: int = 0) -> str:
        """Press Shift-Tab at the end of some code; return what is shown."""
        reply = self._client.inspect(code, len(code), detail_level, reply=True, timeout=_DEADLINE_S)
        return str(reply["content"]["data"].get("text/plain", ""))

    def interrupt(self) -> None:
        """Press Stop; may be called on any thread, for which the manager would make a loop."""
        provisioner: Any = self.manager.provisioner
        os.kill(provisioner.pid, signal.SIGINT)


@pytest.fixture
def cold_notebook() -> Iterator[Notebook]:
    """A kernel of the test's own, with the extension loaded and no ranks started."""
    with kernel() as notebook:
        yield notebook


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    """A kernel with two ranks, shared by the tests of a module."""
    with kernel() as notebook:
        assert notebook.run("%ddp start -n 2 --seed 1").status == "ok"
        yield notebook


@pytest.fixture
def bare_notebook() -> Iterator[Notebook]:
    """A kernel of the test's own, in which nothing has been run."""
    with kernel(load=False) as notebook:
        yield notebook


@contextmanager
def kernel(load: bool = True) -> Iterator[Notebook]:
    """Start a kernel, and end it; ``load`` the extension."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=_DEADLINE_S)
        notebook = Notebook(manager, client)
        if load:
            assert notebook.run("%load_ext ddp_magic").status == "ok"
        yield notebook
    finally:
        client.stop_channels()
        if manager.has_kernel:
            manager.shutdown_kernel()
