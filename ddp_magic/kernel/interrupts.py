"""Keeps Ctrl-C from leaving things half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ddp_magic.errors import Interrupted


@contextmanager
def uninterrupted(afterwards: str) -> Iterator[None]:
    """Have Ctrl-C wait until the block is done; it must take seconds at most.

    Parameters
    ----------
    afterwards
        What `Interrupted`, raised then, says.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal is handled here
        return
    pressed: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *call: pressed.append(call))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
    if pressed:
        raise Interrupted(afterwards)
