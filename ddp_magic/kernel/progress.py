"""Says what a start waits for."""

from __future__ import annotations

import time

from ddp_magic.core.view import View

_WONDER_S = 3.0


class Progress:
    """Tells what a start waits for, once that takes long enough to wonder.

    Parameters
    ----------
    view
        Where it is told, if anywhere.
    what
        What it is that takes so long.
    """

    def __init__(self, view: View | None, what: str = "starting") -> None:
        self._view = view
        self._what = what
        self._began_s = time.monotonic()
        self._told = ""

    @property
    def elapsed_s(self) -> float:
        """Time since the start began."""
        return time.monotonic() - self._began_s

    def tell(self, what: str) -> None:
        """Tell what is being waited for, in a few words."""
        if self._view is None or self.elapsed_s < _WONDER_S or what == self._told:
            return
        self._told = what
        self._view.progress(f"ddp: {self._what}: {what} ...")

    def end(self, what: str, *, always: bool = False) -> None:
        """Tell how it ended, if anything was told before."""
        if self._view is not None and (always or self._told):
            self._view.notice(f"ddp: {what}")
