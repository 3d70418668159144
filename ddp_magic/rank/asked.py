"""Answers what the notebook asks while the main thread runs a cell, or waits."""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Callable

from ddp_magic import errors
from ddp_magic.core.invoke import invoke

Reply = Callable[[bytes], None]


class AskedThread:
    """One thread that calls functions by name, one after the other.

    The control thread, which says where this rank is and frees it, must never wait for them.
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[str, bytes, Reply]] = queue.SimpleQueue()
        threading.Thread(target=self._main, name="ddp-asked", daemon=True).start()

    def put(self, target: str, payload: bytes, reply: Reply) -> None:
        """Have ``target`` called with the pickled ``payload``; ``reply`` gets the answer."""
        self._waiting.put((target, payload, reply))

    def _main(self) -> None:
        while True:
            target, payload, reply = self._waiting.get()
            reply(_answer(target, payload))


def _answer(target: str, payload: bytes) -> bytes:
    """Return ``(True, result)``, or ``(False, (name, text))`` of an error, pickled."""
    try:
        return pickle.dumps((True, invoke(target, pickle.loads(payload))))
    except Exception as error:  # told in the notebook
        known = (kind.__name__ for kind in type(error).__mro__ if hasattr(errors, kind.__name__))
        name = next(known, type(error).__name__)
        return pickle.dumps((False, (name, str(error) or name)))
