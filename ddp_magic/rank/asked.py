"""Answers what the notebook asks while the main thread runs a cell, or waits."""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Callable

from ddp_magic import errors
from ddp_magic.core.invoke import invoke

Reply = Callable[[bytes], None]
_Question = tuple[str, bytes, Reply]


class Asked:
    """Calls functions by name: those of one module one after the other, on a thread of their own.

    So where this rank is can be answered while its variables are compared. The control thread,
    which frees this rank, must never wait for either.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, queue.SimpleQueue[_Question]] = {}

    def put(self, target: str, payload: bytes, reply: Reply) -> None:
        """Have ``target`` called with the pickled ``payload``; ``reply`` gets the answer.

        Called on the control thread alone.
        """
        module = target.partition(":")[0]
        if module not in self._waiting:
            waiting = self._waiting[module] = queue.SimpleQueue()
            name = f"ddp-asked-{module.rpartition('.')[2]}"
            threading.Thread(target=_answer_all, args=(waiting,), name=name, daemon=True).start()
        self._waiting[module].put((target, payload, reply))


def _answer_all(waiting: queue.SimpleQueue[_Question]) -> None:
    while True:
        target, payload, reply = waiting.get()
        reply(_answer(target, payload))


def _answer(target: str, payload: bytes) -> bytes:
    """Return ``(True, result)``, or ``(False, (name, text))`` of an error, pickled."""
    try:
        return pickle.dumps((True, invoke(target, pickle.loads(payload))))
    except Exception as error:  # told in the notebook
        known = (kind.__name__ for kind in type(error).__mro__ if hasattr(errors, kind.__name__))
        name = next(known, type(error).__name__)
        return pickle.dumps((False, (name, str(error) or name)))
