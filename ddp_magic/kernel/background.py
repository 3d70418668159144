"""A cell that runs while the notebook goes on."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

from ddp_magic.core.view import View
from ddp_magic.errors import CellError, CellInterrupted, CellTimeout, Interrupted


class BackgroundCell:
    """A handle on a cell that was started with ``-b``; its output goes to the cell that started it.

    Parameters
    ----------
    follow
        Follows the cell to its end and raises what it failed with.
    interrupt
        Stops it.
    view
        Where it is shown.

    Attributes
    ----------
    error
        What the cell failed with; None while it runs and if it succeeded.
    """

    def __init__(
        self, follow: Callable[[], None], interrupt: Callable[[], object], view: View
    ) -> None:
        self._follow = follow
        self._interrupt = interrupt
        self._view = view
        self.error: BaseException | None = None
        # Not the thread's own `join`: one that is interrupted makes the thread look ended.
        self._ended = threading.Event()
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run, args=(self._main,), name="ddp-background-cell", daemon=True
        )
        thread.start()

    @property
    def done(self) -> bool:
        """Whether the cell has ended, well or not."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the cell to end; return whether it has.

        Raises
        ------
        Interrupted
            Stop was pressed; the cell goes on.
        """
        try:
            return self._ended.wait(timeout_s)
        except KeyboardInterrupt:
            raise Interrupted("the cell in the background goes on; interrupt() stops it") from None

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
            self._interrupt()

    def __repr__(self) -> str:
        if not self.done:
            return "<BackgroundCell: running; wait(), result() and interrupt() are yours>"
        stopped = isinstance(self.error, CellInterrupted)
        state = "stopped" if stopped else "failed" if self.error else "finished"
        return f"<BackgroundCell: {state}; result() is yours>"

    def _main(self) -> None:
        try:
            self._follow()
        except BaseException as error:  # kept for `result`, on the caller's thread
            self.error = error
            if isinstance(error, (CellError, CellInterrupted, CellTimeout)):
                self._view.text("stderr", "\n".join(error._render_traceback_()) + "\n")
        finally:
            self._ended.set()
