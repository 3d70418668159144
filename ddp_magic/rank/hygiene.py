"""What a cell changes for the whole process and must not hand on to the next cell."""

from __future__ import annotations

import builtins
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


@contextmanager
def clean_process() -> Iterator[None]:
    """Run a cell with a clean ``sys.argv``; undo its changes to argv, builtins and signal handlers.

    The working directory, ``sys.path`` and ``os.environ`` are the user's to change, as in any
    notebook.
    """
    argv, sys.argv = sys.argv, [""]
    before = dict(vars(builtins))
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        sys.argv = argv
        _restore_builtins(before)
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _restore_builtins(before: dict[str, Any]) -> None:
    now = vars(builtins)
    for name, value in before.items():
        if now.get(name) is not value and name != "_":
            setattr(builtins, name, value)
