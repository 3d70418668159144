"""A real Jupyter kernel, driven as a frontend drives it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.told import plain, stopped

_DEADLINE_S = 90
STOP = "\0stop"  # typed: presses Stop at the prompt
CTRL_D = "\x04"

Message = dict[str, Any]


@dataclass
class CellOutput:
    """What a cell left in the notebook."""

    status: str = ""
    outputs: list[Message] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)

    def text(self, stream: str = "stdout") -> str:
        """All that was printed on a stream."""
        streams = (o for o in self.outputs if o["msg_type"] == "stream")
        return "".join(o["content"]["text"] for o in streams if o["content"]["name"] == stream)

    def data(self, mime: str) -> list[Any]:
        """The rich outputs of one type."""
        bundles = [o["content"]["data"] for o in self.outputs if "data" in o["content"]]
        return [bundle[mime] for bundle in bundles if mime in bundle]

    @property
    def shown(self) -> str:
        """All that was printed, and the text of what was displayed, in order."""
        contents = [output["content"] for output in self.outputs]
        texts = [c.get("text") or c.get("data", {}).get("text/plain", "") + "\n" for c in contents]
        return plain("".join(texts))

    @property
    def error(self) -> Message:
        """The error's content."""
        return next(o["content"] for o in self.outputs if o["msg_type"] == "error")


class Completions(NamedTuple):
    """What Tab offers, and what it stands for."""

    matches: list[str]
    start: int
    end: int


@dataclass
class When:
    """A line that is typed when something has been shown, or when ranks have stopped."""

    seen: str | Collection[int]
    line: str

    def is_due(self, output: CellOutput) -> bool:
        """Return whether that is so."""
        if isinstance(self.seen, str):
            return self.seen in output.shown
        return stopped(output.shown).keys() >= set(self.seen)


class Keyboard:
    """Types lines at a cell's prompts, each when there is one and its time has come."""

    def __init__(
        self, lines: Sequence[str | When], output: CellOutput, send: Callable[[str], None]
    ) -> None:
        self.left = list(lines)
        self._output = output
        self._send = send
        self._is_asked = False

    def take_prompt(self, request: Message) -> None:
        """Be asked."""
        self._output.prompts.append(request["content"]["prompt"])
        self._is_asked = True
        self.look()

    def look(self) -> None:
        """Type the next line if it is due."""
        if not (self._is_asked and self.left):
            return
        line = self.left[0]
        if isinstance(line, When):
            if not line.is_due(self._output):
                return
            line = line.line
        self.left.pop(0)
        self._is_asked = False
        self._send(line)


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
        typed: Sequence[str | When] | None = None,
    ) -> CellOutput:
        """Run a cell to its end; ``on_output`` sees each output as it comes.

        Parameters
        ----------
        typed
            What is typed at its prompts, one after the other; None: the front end takes no input.

        Raises
        ------
        TimeoutError
            The prompt does not come back.
        """
        output = CellOutput()
        keyboard = Keyboard(typed or (), output, self._type)

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
                keyboard.look()

        try:
            reply = self._client.execute_interactive(
                source,
                timeout=deadline_s,
                output_hook=keep,
                allow_stdin=typed is not None,
                stdin_hook=keyboard.take_prompt,
            )
        except TimeoutError as error:
            told = f"{keyboard.left} left to type after:\n{output.shown}"
            raise TimeoutError(told) from error
        assert not keyboard.left, f"not asked for {keyboard.left}:\n{output.shown}"
        output.status = reply["content"]["status"]
        return output

    def _type(self, line: str) -> None:
        if line == STOP:
            self.interrupt()
        else:
            self._client.input(line)

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
