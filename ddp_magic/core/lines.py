"""Cut printed text into lines, and tell a progress bar from a line."""

from __future__ import annotations

import re
from collections.abc import Callable

_CURSOR_MOVES = re.compile(r"\x1b\[\d*[A-K]")  # nested bars go up a line, some erase to its end
_LONGEST = 1_000_000  # characters of one line, after which it is taken to have ended


class LineSplitter:
    """Cuts the text of one stream into complete lines, however it comes in pieces.

    Parameters
    ----------
    settle
        Called on a line that holds carriage returns: what is left of it, or None for
        nothing. ``\\r\\n`` is only a newline.
    """

    def __init__(self, settle: Callable[[str], str | None]) -> None:
        self._settle = settle
        self._pieces: list[str] = []
        self._length = 0

    @property
    def rest(self) -> str:
        """The line that has not ended; of a progress bar its last states alone."""
        return "".join(self._pieces)

    @property
    def rest_is_bar(self) -> bool:
        """Tell whether the line that has not ended holds a carriage return."""
        return bool(self._pieces) and "\r" in self._pieces[0]  # where _keep puts them all

    def feed(self, text: str) -> list[str]:
        """Take text; return the lines that it completes, without their newlines."""
        lines = text.split("\n")
        last = lines.pop()
        if lines:
            lines[0] = self._take() + lines[0]
        self._keep(last)
        if self._length > _LONGEST:
            lines.append(self._take())
        return self._settled(lines)

    def flush(self) -> list[str]:
        """Return what is left, as if its newline had come."""
        rest = self._take()
        return self._settled([rest]) if rest else []

    def _keep(self, piece: str) -> None:
        if "\r" in piece:
            piece = _last_states(self._take() + piece)
        if piece:
            self._pieces.append(piece)
            self._length += len(piece)

    def _take(self) -> str:
        rest = self.rest
        self._pieces.clear()
        self._length = 0
        return rest

    def _settled(self, lines: list[str]) -> list[str]:
        if not any("\r" in line for line in lines):
            return lines
        settled = (self._settle(line) for line in map(_strip_return, lines))
        return [line for line in settled if line is not None]


def text_beside_bar(line: str) -> str | None:
    """Return the text that a line with carriage returns ends in; None for a progress bar.

    A bar goes back to the line's start before each state it draws. What follows an erased
    bar is text, and so is what follows states that end in a carriage return.
    """
    if "\r" not in line:
        return line
    before, last = _CURSOR_MOVES.sub("", line).split("\r")[-2:]
    is_bar = line.startswith("\r") and not before.isspace()
    return None if is_bar or not last.strip() else last


def last_state(line: str) -> str | None:
    """Return what a line with carriage returns shows in the end; None if it was erased."""
    if "\r" not in line:
        return line
    before, last = _CURSOR_MOVES.sub("", line).split("\r")[-2:]
    return (last or before).rstrip() or None


def is_erased(line: str) -> bool:
    """Tell whether an unfinished line has been wiped, the cursor at its start."""
    return "\r" in line and not "".join(line.split("\r")[-2:]).strip()


def _last_states(line: str) -> str:
    states = line.split("\r")
    return line if len(states) <= 4 else "\r".join([states[0], *states[-3:]])


def _strip_return(line: str) -> str:
    return line.rstrip("\r")
