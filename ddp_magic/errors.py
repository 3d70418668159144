"""Every error that ddp_magic raises.

::

    DdpMagicError
    ├── UsageError        what was typed: an unknown option, a bad rank set, a name no rank has
    │   └── CellSyntaxError   a cell that cannot be compiled
    ├── SetupError        this machine or installation: no torch, a backend it lacks, too few GPUs
    ├── StartError        the ranks were asked to start and did not
    ├── StateError        a sound request, not possible in the session's present state
    ├── CellError         the cell failed on one rank or more
    ├── CellTimeout       the cell ran longer than ``--timeout``
    ├── CollectiveError   not every rank made a collective, or not the same (raised in the ranks)
    ├── ParityError       training could not be kept equal to one process (raised in the ranks)
    └── AnomalyError      a value is not finite, with ``--detect-anomaly`` (raised in the ranks)

    KeyboardInterrupt
    ├── CellInterrupted   the cell was stopped
    └── Interrupted       Stop was pressed while ranks started, ended or were waited for

The first two are misuse, found before anything runs; the rest are the world's failures.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddp_magic.core.failures import FailureStory


class DdpMagicError(Exception):
    """Base of every error here: what happened, what to do, and what is around it.

    Parameters
    ----------
    cause
        What went wrong, with the option, the value or the rank named.
    fix
        What to do about it, as a sentence or a line to run.
    context
        Further lines: the last output of a process, the story of a state.
    """

    def __init__(self, cause: str, *, fix: str = "", context: str = "") -> None:
        self.cause = cause
        self.fix = fix
        self.context = context
        super().__init__("\n".join(part for part in (cause, fix, context) if part))

    def _render_traceback_(self) -> list[str]:
        """Let IPython show the message alone: the frames are this package's, not the user's."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(DdpMagicError):
    """What was typed cannot be right."""


class CellSyntaxError(UsageError):
    """The cell cannot be compiled; nothing was run.

    A `SyntaxError` itself would be shown below the frames of the magic, which are not the user's.
    """

    def __init__(self, error: SyntaxError, cell: str) -> None:
        self.error = error
        self.cell = cell
        super().__init__(f"{type(error).__name__}: {error.msg} ({cell}, line {error.lineno})")

    def _render_traceback_(self) -> list[str]:
        """Show the line and the place, as for any cell."""
        error = self.error
        shown = [f"  {self.cell}, line {error.lineno}"]
        if error.text is not None:
            line = error.text.rstrip()
            indent = len(line) - len(line.lstrip())
            caret = " " * max(0, (error.offset or 1) - 1 - indent)
            shown += [f"    {line.lstrip()}", f"    {caret}^"]
        return [*shown, f"{type(error).__name__}: {error.msg}"]


class SetupError(DdpMagicError):
    """This machine or installation lacks something that was asked for."""


class StartError(DdpMagicError):
    """The ranks did not start."""


class StateError(DdpMagicError):
    """The request makes sense, but not in the session's present state."""


class CellError(DdpMagicError):
    """The cell failed on one rank or more.

    Attributes
    ----------
    story
        What happened to each rank (`ddp_magic.core.failures.FailureStory`).
    """

    def __init__(self, story: FailureStory, *, fix: str = "") -> None:
        self.story = story
        super().__init__(story.summary(), fix=fix)
        if hasattr(self, "add_note"):  # Python 3.11+: shown where no IPython shows the story
            self.add_note(plain("\n".join(_render(story))))

    def _render_traceback_(self) -> list[str]:
        """Show the first failing rank's own traceback, then a line for each group of ranks."""
        return [*_render(self.story), *([self.fix] if self.fix else [])]


class CellInterrupted(KeyboardInterrupt):
    """The cell was stopped; a `KeyboardInterrupt`, so that Run All stops with it.

    Attributes
    ----------
    story
        What happened to each rank.
    fix
        What brings back ranks that have died; or ``""``.
    """

    def __init__(self, story: FailureStory, *, fix: str = "") -> None:
        self.story = story
        self.fix = fix
        super().__init__("the cell was stopped")

    def _render_traceback_(self) -> list[str]:
        """Show where the ranks were stopped."""
        shown = _render(self.story, stopped=True)
        name = [] if self.story.first else [f"KeyboardInterrupt: {self}"]
        return [*shown, *([self.fix] if self.fix else []), *name]


class Interrupted(KeyboardInterrupt):
    """Stop was pressed while ranks started, ended or were waited for; nothing is half done."""

    def _render_traceback_(self) -> list[str]:
        """Show the message alone: the frames are this package's."""
        return [f"KeyboardInterrupt: {self}"]


class CellTimeout(DdpMagicError):
    """The cell ran longer than its ``--timeout``.

    Attributes
    ----------
    story
        What happened to each rank.
    """

    def __init__(self, story: FailureStory, timeout_s: float) -> None:
        self.story = story
        super().__init__(f"The cell ran longer than {timeout_s:g} s.")

    def _render_traceback_(self) -> list[str]:
        """Show where the ranks were when the time was over."""
        return [*_render(self.story, stopped=True), f"{type(self).__name__}: {self}"]


class CollectiveError(DdpMagicError, RuntimeError):
    """Not every rank came to a collective, or they came with calls that do not match.

    A `RuntimeError` too, as torch's own errors of collectives are.
    """


class ParityError(DdpMagicError):
    """Training could not be kept equal to that of one process."""


class AnomalyError(DdpMagicError, ArithmeticError):
    """A NaN or infinite value came up as a cell with ``--detect-anomaly`` trained."""


def plain(text: str) -> str:
    """Return text without the terminal's codes for colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _render(story: FailureStory, stopped: bool = False) -> list[str]:
    """Return the first failure's own traceback and a line for each group of ranks.

    Parameters
    ----------
    stopped
        Whether that may be of an interrupt, as the cell was.
    """
    first = story.first
    shown = first and (
        story.is_told(first) or (stopped and first.name == "KeyboardInterrupt" and not story.died)
    )
    traceback = [*first.traceback, ""] if first and shown else []
    return [*traceback, *(f"ddp: {line}" for line in story.lines())]
