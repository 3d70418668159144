"""Calls what may run the user's code, which may wait for ever, beside the thread that is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class TooLong(Exception):
    """It has not returned in time; it is left to itself."""


def in_time(patience_s: float, function: Callable[[], Any]) -> Any:
    """Return what ``function`` returns, and raise what it raises.

    Raises
    ------
    TooLong
        It takes longer than ``patience_s``.
    """
    told: list[tuple[Any, Exception | None]] = []

    def call() -> None:
        try:
            told.append((function(), None))
        except Exception as error:  # raised by whoever waits
            told.append((None, error))

    thread = threading.Thread(target=call, name="ddp-in-time", daemon=True)
    thread.start()
    thread.join(patience_s)
    if not told:
        raise TooLong
    result, error = told[0]
    if error is not None:
        raise error
    return result
