"""Bounds what a cell prints: a flood reaches the notebook as its beginning and its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ddp_magic.core.budget import OutputBudget

Message = dict[str, Any]

_THREAD_TIMEOUT_S = 10
_NAME = "ddp"  # in the notes, which are alike on all ranks so that they are shown once


class FloodGate:
    """Passes the rank's output on within one budget per cell.

    Works on the messages that ipykernel's streams send five times a second, on their own thread,
    so that a ``print`` costs nothing more.
    """

    def __init__(self, stdout: Any, stderr: Any) -> None:
        self._streams = (stdout, stderr)
        self._budget = OutputBudget(_NAME)

    def install(self) -> None:
        """Begin to look at the streams' messages."""
        for stream in self._streams:
            self._on_thread_of(stream, partial(stream.register_hook, self._pass))

    def uninstall(self) -> None:
        """Let everything through again."""
        for stream in self._streams:
            self._on_thread_of(stream, partial(stream.unregister_hook, self._pass))

    def begin_cell(self) -> None:
        """Give the new cell a full budget."""
        self._budget = OutputBudget(_NAME)

    def end_cell(self) -> str:
        """Return the end of what was dropped, or ``""``; called when the streams are flushed."""
        spent, self._budget = self._budget, OutputBudget(_NAME)
        return spent.finish()

    def _pass(self, message: Message) -> Message:
        content = message["content"]
        text = self._budget.feed(content["name"], content["text"], time.monotonic())
        content["text"] = text.encode(errors="backslashreplace").decode()  # no lone surrogates
        return message

    @staticmethod
    def _on_thread_of(stream: Any, action: Callable[[], None]) -> None:
        # Hooks are kept per thread, and the stream's own thread is the one that sends.
        done = threading.Event()

        def act() -> None:
            action()
            done.set()

        stream.pub_thread.schedule(act)
        if not done.wait(_THREAD_TIMEOUT_S):
            raise RuntimeError(f"the thread that sends {stream.name} does not answer")
