"""The thread that tells, once a second while a cell runs, what this rank is doing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_FIRST_S = 0.5  # a shorter cell shows nothing of it
_INTERVAL_S = 1.0


class PulseThread:
    """Sends what a function returns, as a message about the cell.

    Parameters
    ----------
    take
        Returns a pulse, to be read by `ddp_magic.core.runstate.Pulse`; called on the thread and,
        as the cell ends, on the one that runs it.
    send
        Sends a message about the cell that runs.
    prepare
        Is called once on the thread, as it begins.
    """

    def __init__(
        self,
        take: Callable[[], dict[str, Any]],
        send: Callable[[dict[str, Any]], None],
        prepare: Callable[[], None],
    ) -> None:
        self._prepare = prepare
        self._take = take
        self._send = send
        self._running = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._sent = False  # whether any was, of this cell
        threading.Thread(target=self._main, name="ddp-pulse", daemon=True).start()

    def begin_cell(self) -> None:
        """Begin to send."""
        self._sent = False
        self._ended.clear()
        self._running.set()

    def end_cell(self) -> None:
        """Send how far it has come, unless the cell was too short, and nothing after this."""
        self._running.clear()
        self._ended.set()
        with self._lock:
            if self._sent:
                self._beat()

    def _main(self) -> None:
        self._prepare()
        while True:
            self._running.wait()
            wait_s = _FIRST_S
            while not self._ended.wait(wait_s):
                wait_s = _INTERVAL_S
                with self._lock:
                    if self._running.is_set():
                        self._beat()

    def _beat(self) -> None:
        self._sent = True
        self._send({"kind": "pulse", "pulse": self._take()})
