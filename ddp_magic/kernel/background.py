"""A cell that runs while the notebook goes on."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddp_magic.kernel.session import Session


class BackgroundCell:
    """A handle on a cell that was started with ``-b``; its output goes to the cell that started it.

    Attributes
    ----------
    error
        What the cell failed with; None while it runs and if it succeeded.
    """

    def __init__(self, follow: Callable[[], None], session: Session) -> None:
        self._follow = follow
        self._session = session
        self.error: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._main,), name="ddp-background-cell", daemon=True
        )
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the cell has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the cell to end; return whether it has."""
        self._thread.join(timeout_s)
        return self.done

    def result(self, timeout_s: float | None = None) -> None:
        """Wait for the cell to end and raise what it failed with.

        Raises
        ------
        TimeoutError
            If it is still running after ``timeout_s``.
        """
        if not self.wait(timeout_s):
            raise TimeoutError(f"the cell is still running after {timeout_s} s")
        if self.error is not None:
            raise self.error

    def interrupt(self) -> None:
        """Stop the cell on all its ranks."""
        if not self.done:
            self._session.interrupt()

    def __repr__(self) -> str:
        state = "running" if not self.done else "failed" if self.error else "finished"
        return f"<BackgroundCell: {state}>"

    def _main(self) -> None:
        try:
            self._follow()
        except BaseException as error:  # kept for `result`, on the caller's thread
            self.error = error
