"""A bound on how much printed text one rank passes on."""

from __future__ import annotations

_REOPEN = 0.05  # share of the capacity that must be back before a spent budget passes text again
_TAIL_CHARS = 50_000
_EMPTY_LINE = (0, 0)


class OutputBudget:
    """Passes text on until the budget is spent, then keeps only the end of what comes.

    A token bucket. What a carriage return overwrites costs nothing: a progress bar may run
    for days. The time is passed in, in seconds from any fixed start.

    Parameters
    ----------
    name
        Whose text it is, as the notes name it: ``"rank 0"``.
    capacity_chars
        Characters that may pass at once.
    refill_chars_per_s
        Characters by which the budget grows back.
    tail_lines
        How many of the last lines not shown are given out at the end.
    """

    def __init__(
        self,
        name: str,
        *,
        capacity_chars: int = 2_000_000,
        refill_chars_per_s: float = 500.0,
        tail_lines: int = 100,
    ) -> None:
        self._name = name
        self._capacity = capacity_chars
        self._refill_per_s = refill_chars_per_s
        self._tail_lines = tail_lines
        self._left = float(capacity_chars)
        self._updated_s: float | None = None
        self._open: dict[str, tuple[int, int]] = {}  # unfinished lines: width, column of the cursor
        self._closed = False
        self._dropped_chars = self._dropped_lines = 0
        self._tail = ""

    def feed(self, stream: str, text: str, now_s: float) -> str:
        """Take text; return what is to be shown now: all of it, or its first lines and a note."""
        self._refill(now_s)
        if self._closed:
            self._drop(text)
            return ""
        line = self._open.get(stream, _EMPTY_LINE)
        grown, after = _write(line, text)
        if grown > self._left:
            return self._close(stream, text)
        self._left -= grown
        self._open[stream] = after
        return text

    def finish(self, stream: str = "stdout") -> str:
        """Return a line that says how much was dropped, and its last lines; or ``""``."""
        if not self._dropped_chars:
            return ""
        tail = self._tail.split("\n")[-self._tail_lines - 1 :]
        amount = f"{self._dropped_lines:,} lines ({self._dropped_chars:,} characters)"
        note = self._note(stream, f"{amount} not shown; the last of them:")
        self._dropped_chars = self._dropped_lines = 0
        self._tail = ""
        return note + "\n".join(tail)

    def _refill(self, now_s: float) -> None:
        if self._updated_s is not None:
            grown = (now_s - self._updated_s) * self._refill_per_s
            self._left = min(self._capacity, self._left + grown)
        self._updated_s = now_s
        if self._closed and self._left >= _REOPEN * self._capacity:
            self._closed = False

    def _close(self, stream: str, text: str) -> str:
        end = text.rfind("\n", 0, int(self._left)) + 1
        self._left -= end
        self._closed = True
        self._drop(text[end:])
        if end:
            self._open[stream] = _EMPTY_LINE
        what = f"more than {self._capacity:,} characters printed, what follows is not shown"
        return text[:end] + self._note(stream, what)

    def _note(self, stream: str, what: str) -> str:
        newline = "\n" if self._open.pop(stream, _EMPTY_LINE) != _EMPTY_LINE else ""
        return f"{newline}[{self._name}: {what}]\n"

    def _drop(self, text: str) -> None:
        self._dropped_chars += len(text)
        self._dropped_lines += text.count("\n")
        self._tail = (self._tail + text[-_TAIL_CHARS:])[-_TAIL_CHARS:]


def _write(line: tuple[int, int], text: str) -> tuple[int, tuple[int, int]]:
    """Write text to an unfinished line.

    Returns
    -------
    int
        Characters by which what is shown grows.
    tuple of int
        Width of the unfinished line after it, and the column of the cursor.
    """
    width, column = line
    if "\r" not in text and width == column:
        column = len(text) - text.rfind("\n") - 1 if "\n" in text else column + len(text)
        return len(text), (column, column)
    shown = -width
    for number, part in enumerate(text.split("\n")):
        if number:
            shown += width + 1
            width = column = 0
        width, column = _overwrite(width, column, part)
    return shown + width, (width, column)


def _overwrite(width: int, column: int, text: str) -> tuple[int, int]:
    for number, part in enumerate(text.split("\r")):
        column = len(part) + (0 if number else column)
        width = max(width, column)
    return width, column
