"""A view for plain Python: text to the process's own streams, rich output as its text."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable

from ddp_magic.core.runstate import RunState
from ddp_magic.core.view import MimeBundle, Points


class TextView:
    """Prints a cell's output; curves need a notebook and are left out."""

    def begin(self) -> None:
        """Do nothing."""

    def offer_controls(self, stop: Callable[[], object], where: Callable[[], str]) -> None:
        """Do nothing: whoever runs it has the session."""

    def show_state(self, state: RunState) -> None:
        """Do nothing."""

    def text(self, stream: str, text: str) -> None:
        """Write to the process's ``stdout`` or ``stderr``."""
        file = sys.stderr if stream == "stderr" else sys.stdout
        file.write(text)
        file.flush()

    def display(self, data: MimeBundle, metadata: MimeBundle, transient: MimeBundle) -> None:
        """Print the output's plain text."""
        if "text/plain" in data:
            print(data["text/plain"])

    def update_display(self, data: MimeBundle, metadata: MimeBundle, transient: MimeBundle) -> None:
        """Print the new output: what was printed cannot be replaced."""
        self.display(data, metadata, transient)

    def clear_output(self, wait: bool) -> None:
        """Do nothing: what was printed stays."""

    def notice(self, text: str) -> None:
        """Print the line to ``stderr``, beside the cell's own output."""
        print(text, file=sys.stderr)

    def progress(self, text: str) -> None:
        """Print the line to ``stderr``."""
        self.notice(text)

    def points(self, points: Points) -> None:
        """Do nothing."""

    def no_input(self) -> str:
        """Say so where there is no terminal."""
        at_terminal = sys.stdin is not None and sys.stdin.isatty()
        return "" if at_terminal else "there is no terminal to answer at"

    def ask(self, prompt: str, goes_on: Callable[[], bool], is_password: bool) -> str | None:
        """Read a line; what comes meanwhile is shown when it has been typed."""
        line = getpass.getpass(prompt) if is_password else input(prompt)
        return line if goes_on() else None

    def tick(self) -> None:
        """Do nothing: nothing waits."""

    def finish(self) -> None:
        """Do nothing: all is printed."""
