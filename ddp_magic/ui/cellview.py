"""A `%%ddp` cell's output in the notebook."""

from __future__ import annotations

import html
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

from ddp_magic.core.runstate import RunState
from ddp_magic.core.view import MimeBundle, Points
from ddp_magic.ui import inputbox
from ddp_magic.ui.controls import Controls
from ddp_magic.ui.page import cell_id, has_a_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddp_magic.ui.panel import Panel

# Fixed, and legible in either theme: an untrusted notebook keeps no theme variable.
_NOTICE_STYLE = "color: #808080; font-size: 0.9em; padding-left: 5px"


class NotebookView:
    """Shows output in the notebook cell that is running when this is made."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._panel: Panel | None = None
        self._controls: Controls | None = None
        self._cell_id = cell_id(shell)
        self._began_s = time.monotonic()
        self._last_stream = "stdout"
        self._progress_id = ""  # of the display that the next line of progress replaces

    def begin(self) -> None:
        """Count the cell's time from here."""
        self._began_s = time.monotonic()

    def offer_controls(self, stop: Callable[[], object], where: Callable[[], str]) -> None:
        """Have buttons on the panel."""
        self._controls = Controls(stop, where)

    def show_state(self, state: RunState) -> None:
        """Show what the ranks do, where there is a page for it."""
        if has_a_page(self._shell):
            self._shown().show_state(state)

    def text(self, stream: str, text: str) -> None:
        """Print text exactly as it is."""
        if stream != self._last_stream:
            _stream(self._last_stream).flush()  # each is sent by a timer of its own
            self._last_stream = stream
        _stream(stream).write(text)

    def display(self, data: MimeBundle, metadata: MimeBundle, transient: MimeBundle) -> None:
        """Show a rich output."""
        self._publish(data, metadata, transient, update=False)

    def update_display(self, data: MimeBundle, metadata: MimeBundle, transient: MimeBundle) -> None:
        """Replace a rich output."""
        self._publish(data, metadata, transient, update=True)

    def clear_output(self, wait: bool) -> None:
        """Clear the cell's output, but for the panel."""
        self._shell.display_pub.clear_output(wait)
        self._progress_id = ""
        if self._panel is not None:
            self._panel.show_again()

    def notice(self, text: str) -> None:
        """Show one muted line, apart from what the cell printed."""
        waited, self._progress_id = self._progress_id, ""
        transient = {"display_id": waited} if waited else {}
        self._publish(_muted(text), {}, transient, update=bool(waited))

    def progress(self, text: str) -> None:
        """Show one muted line in place of the last such line."""
        shown = bool(self._progress_id)
        self._progress_id = self._progress_id or uuid.uuid4().hex
        self._publish(_muted(text), {}, {"display_id": self._progress_id}, update=shown)

    def points(self, points: Points) -> None:
        """Grow the live curve; it appears with its first point."""
        self._shown().add(points)

    def _shown(self) -> Panel:
        if self._panel is None:
            from ddp_magic.ui import earlier_runs
            from ddp_magic.ui.panel import Panel

            self._panel = Panel(controls=self._controls, earlier=earlier_runs.of(self._cell_id))
        return self._panel

    def no_input(self) -> str:
        """Say so where the front end (that runs all cells, say) takes no input."""
        return inputbox.no_input(self._shell)

    def ask(self, prompt: str, goes_on: Callable[[], bool], is_password: bool) -> str | None:
        """Show the cell's own input box."""
        return inputbox.ask(self._shell, prompt, goes_on, is_password)

    def tick(self) -> None:
        """Draw the points that have come in since the curve was last drawn."""
        if self._panel is not None:
            self._panel.add({})

    def finish(self) -> None:
        """Replace the panel by a picture that needs no kernel."""
        if self._panel is not None:
            took_s = time.monotonic() - self._began_s
            self._panel.finish(f"{took_s:,.1f} s")
            from ddp_magic.ui import earlier_runs

            earlier_runs.keep(self._cell_id, self._panel.curves)
            self._panel = None

    def _publish(
        self, data: MimeBundle, metadata: MimeBundle, transient: MimeBundle, *, update: bool
    ) -> None:
        # What precedes it must be shown first: streams are sent by a timer, displays at once.
        sys.stdout.flush()
        sys.stderr.flush()
        self._shell.display_pub.publish(data, metadata, transient=transient, update=update)


def _muted(text: str) -> MimeBundle:
    line = f'<div style="{_NOTICE_STYLE}">{html.escape(text)}</div>'
    return {"text/plain": text, "text/html": line}


def _stream(name: str) -> Any:
    return sys.stderr if name == "stderr" else sys.stdout
