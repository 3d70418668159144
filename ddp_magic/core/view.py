"""What a session needs from whoever shows a cell's output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ddp_magic.core.runstate import RunState

MimeBundle = dict[str, Any]
Points = Mapping[str, Sequence[tuple[int, float]]]


class View(Protocol):
    """Where one cell's output goes; every method is called on the thread that runs the cell."""

    def begin(self) -> None:
        """Note that the cell begins to run, the ranks being ready."""

    def offer_controls(self, stop: Callable[[], object], where: Callable[[], str]) -> None:
        """Let the user stop the cell, and ask where its ranks are, until `finish`.

        Both may be called on any thread.
        """

    def show_state(self, state: RunState) -> None:
        """Show what the ranks do; called twice a second, from the cell's first second on."""

    def text(self, stream: str, text: str) -> None:
        """Show text exactly as it was printed to ``stdout`` or ``stderr``."""

    def display(self, data: MimeBundle, metadata: MimeBundle, transient: MimeBundle) -> None:
        """Show a rich output."""

    def update_display(self, data: MimeBundle, metadata: MimeBundle, transient: MimeBundle) -> None:
        """Replace the rich output whose ``display_id`` is in ``transient``."""

    def clear_output(self, wait: bool) -> None:
        """Remove what was shown so far (at the next output, if ``wait``)."""

    def notice(self, text: str) -> None:
        """Show one line about what was done to the cell."""

    def progress(self, text: str) -> None:
        """Show one line on what is being waited for; the next such line or notice replaces it."""

    def points(self, points: Points) -> None:
        """Add ``(step, value)`` points to the named curves."""

    def no_input(self) -> str:
        """Return why nobody can be asked here; ``""`` if somebody can."""

    def ask(self, prompt: str, goes_on: Callable[[], bool], is_password: bool) -> str | None:
        """Have a line typed.

        Parameters
        ----------
        goes_on
            Is called many times a second meanwhile, if that can be done: whether the answer is
            still wanted.

        Returns
        -------
        str or None
            The line; None if it is not wanted any more.

        Raises
        ------
        EOFError
            Ctrl-D was typed.
        KeyboardInterrupt
            Stop was pressed.
        """

    def tick(self) -> None:
        """Do what is due by time; called a few times a second while nothing comes."""

    def finish(self) -> None:
        """Leave what must stay when the cell has ended, however it ended."""
