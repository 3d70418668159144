"""What the operating system is asked to do for the processes of a session."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from contextlib import suppress

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PARENT_POLL_S = 0.5
_KILL_TIMEOUT_S = 5.0


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have this process get a signal when its parent has gone.

    Parameters
    ----------
    parent
        Its process id, as taken before the fork: the parent may have ended since.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os.kill(os.getpid(), number)
    else:
        watch = threading.Thread(target=_watch_parent, args=(parent, number), daemon=True)
        watch.start()


def end_descendants() -> None:
    """Kill all that is below this process, and what they start meanwhile."""
    me = psutil.Process()
    while alive := me.children(recursive=True):
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _, left = psutil.wait_procs(alive, timeout=_KILL_TIMEOUT_S)
        if left:  # in uninterruptible sleep: the system ends them when that is over
            print("ddp: not ended yet:", [process.pid for process in left], file=sys.stderr)
            return


def adopt_orphans() -> None:
    """Become the parent of what this process's descendants leave behind (Linux alone)."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """Have ``ps -o comm`` and ``top`` show this process under a name of at most 15 characters."""
    if sys.platform == "linux":
        _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:15]))


def _prctl(option: int, value: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _watch_parent(parent: int, number: int) -> None:
    ended = threading.Event()
    while os.getppid() == parent:
        ended.wait(_PARENT_POLL_S)
    os.kill(os.getpid(), number)
