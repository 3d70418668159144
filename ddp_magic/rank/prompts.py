"""What this rank asks whoever sits at the notebook."""

from __future__ import annotations

import itertools
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from IPython.core.error import StdinNotImplementedError

from ddp_magic.core.question import Answer, Asks
from ddp_magic.core.where import Place

_NOWHERE = Place(0)
_BETWEEN_CELLS = "no cell runs"
_OTHER_PROCESS = "it is in a process of its own (a loader with num_workers=0 has none)"


class LeaveError(EOFError):
    """`interact` is to be left, and the debugger to take a line."""

    def __init__(self, line: str) -> None:
        super().__init__("interact was left")
        self.line = line


class Prompts:
    """Asks one question at a time, of any thread; the thread waits for the answer.

    Parameters
    ----------
    send
        Sends a message about the cell that runs.
    is_interruptible
        Returns whether SIGINT is raised now, on the main thread.
    """

    def __init__(
        self, send: Callable[[dict[str, Any]], None], is_interruptible: Callable[[], bool]
    ) -> None:
        self._send = send
        self._is_interruptible = is_interruptible
        self.process = os.getpid()
        self._turn = threading.Lock()
        self._numbers = itertools.count()
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._no_input = _BETWEEN_CELLS

    def begin_cell(self, no_input: str) -> None:
        """Take questions from now on, unless there is a reason why nobody can answer."""
        self._no_input = no_input

    def end_cell(self) -> None:
        """Take no more."""
        self._no_input = _BETWEEN_CELLS

    @property
    def refusal(self) -> str:
        """Why nobody can be asked; ``""`` if somebody can."""
        return self._no_input if os.getpid() == self.process else _OTHER_PROCESS

    def ask(self, asks: Asks, prompt: str, place: Place = _NOWHERE, **facts: Any) -> str:
        """Return the line that is typed in the notebook.

        Parameters
        ----------
        facts
            More of `ddp_magic.core.question.Question`.

        Raises
        ------
        StdinNotImplementedError
            Nobody can be asked.
        EOFError
            Ctrl-D was typed, or (`LeaveError`) what asks is to be left.
        KeyboardInterrupt
            The cell is being stopped.
        """
        if refusal := self.refusal:
            raise StdinNotImplementedError(f"Nobody can be asked {prompt!r}: {refusal}.")
        with self._turn:
            number = next(self._numbers)
            sys.stdout.flush()
            sys.stderr.flush()
            in_main = threading.current_thread() is threading.main_thread()
            has_signals = in_main and self._is_interruptible()
            asked = {"number": number, "asks": asks.value, "prompt": prompt}
            asked["has_signals"] = has_signals
            question = {**asked, "place": vars(place), **facts}
            self._send({"kind": "asks", "question": question})
            while (answer := self._answers.get())["number"] != number:
                pass  # of a question that was interrupted
        kind = Answer(answer["answer"])
        if kind is Answer.STOP:
            raise KeyboardInterrupt
        if kind is Answer.EOF:
            raise EOFError
        if kind is Answer.LEAVE and asks is Asks.CONSOLE:
            raise LeaveError(answer["text"])
        return str(answer["text"])

    def take(self, answer: dict[str, Any]) -> None:
        """Take an answer; called on the control thread."""
        self._answers.put(answer)

    def resume(self) -> None:
        """Say that this rank goes on, and asks no more for now."""
        self._send({"kind": "resumes"})
