"""What Stop does to what the user's code has started: shell commands, a loader's workers."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from ipykernel import zmqshell
from IPython.core import interactiveshell
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import DataLoader, _MultiProcessingDataLoaderIter

from ddp_magic.rank.patching import Patches
from ddp_magic.rank.shell import runs_users_code

_AGAIN_S = 0.01


class Stopping:
    """Has Stop end what a cell waits for, quietly and at once.

    The SIGINT of a Stop reaches every process of the rank's, as that of a terminal does.

    Parameters
    ----------
    is_stopped
        Returns whether the cell has been stopped.
    """

    def __init__(self, is_stopped: Callable[[], bool]) -> None:
        self._is_stopped = is_stopped
        self._patches = Patches()

    def install(self) -> None:
        """Begin to."""
        iterator = _MultiProcessingDataLoaderIter
        self._patches.replace(sys, "unraisablehook", self._make_hook)
        self._patches.replace(zmqshell, "system", self._raising)  # of `!command`
        self._patches.replace(interactiveshell, "getoutput", self._raising)  # `x = !command`
        self._patches.replace(signal_handling, "_error_if_any_worker_fails", self._make_error)
        self._patches.replace(iterator, "__init__", self._make_init)
        self._patches.replace(iterator, "_shutdown_workers", self._make_shutdown)
        self._patches.replace(DataLoader, "__iter__", self._make_iter)

    def uninstall(self) -> None:
        """Give IPython and torch their functions back."""
        self._patches.undo()

    def _make_hook(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        @wraps(original)
        def hook(unraisable: Any) -> None:
            """Press Stop again if Python has ignored it: in ``__del__``, or just after a fork."""
            if unraisable.exc_type is KeyboardInterrupt and self._is_stopped():
                press = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT))
                press.daemon = True
                press.start()
            else:
                original(unraisable)

        return hook

    def _raising(self, original: Callable[[str], Any]) -> Callable[[str], Any]:
        @wraps(original)
        def run(command: str) -> Any:
            """End the cell, where IPython goes on with its next line, or fails by itself."""
            try:
                return original(command)
            finally:
                if self._is_stopped():
                    raise KeyboardInterrupt

        return run

    @staticmethod
    def _make_init(original: Any) -> Any:
        @wraps(original)
        def __init__(iterator: Any, loader: Any) -> None:
            # Workers, forked or spawned, inherit that SIGINT is blocked. They would write long
            # tracebacks, and persistent ones would be missed by the next iteration.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                original(iterator, loader)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

        return __init__

    def _make_error(self, original: Callable[[], None]) -> Callable[[], None]:
        @wraps(original)
        def _error_if_any_worker_fails() -> None:
            """Raise, where SIGCHLD comes, in a cell alone: anywhere else it would end the rank.

            Whoever asks a dead worker for more is told then.
            """
            if runs_users_code(sys._getframe(1)) and not self._is_stopped():
                original()

        return _error_if_any_worker_fails

    def _make_shutdown(self, original: Any) -> Any:
        @wraps(original)
        def _shutdown_workers(iterator: Any) -> None:
            """End workers; when stopped, without waiting for the sample that they are at."""
            if self._is_stopped() and not iterator._shutdown:
                for worker in getattr(iterator, "_workers", ()):  # none if it was stopped early
                    worker.terminate()
            original(iterator)

        return _shutdown_workers

    @staticmethod
    def _make_iter(original: Any) -> Any:
        @wraps(original)
        def __iter__(loader: Any) -> Any:
            """Let persistent workers that have died be replaced."""
            kept = loader._iterator
            if kept is not None and not all(worker.is_alive() for worker in kept._workers):
                loader._iterator = None
            return original(loader)

        return __iter__
