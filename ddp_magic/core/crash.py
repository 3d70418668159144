"""What the interpreter writes as compiled code crashes, cut down to what is the user's."""

from __future__ import annotations

import re

from ddp_magic.core.cell import CELL_FOLDER

_BEGINNING = "Fatal Python error:"
_CELL = re.compile(rf'File "[^"]*/{CELL_FOLDER}/[^"]*"')


class CrashTrimmer:
    """Leaves out the frames that called the cell, and the list of extension modules.

    Works on the text as it comes, in pieces; before a crash it returns each as it is.
    """

    def __init__(self) -> None:
        self._crashed = False
        self._called_the_cell = False
        self._line = ""  # the beginning of one, while a report is read

    def feed(self, text: str) -> str:
        """Take a piece of a rank's output and return what is to be shown of it."""
        before = ""
        if not self._crashed:
            before, beginning, rest = text.partition(_BEGINNING)
            if not beginning:
                return text
            self._crashed = True
            text = beginning + rest
        *lines, self._line = (self._line + text).split("\n")
        return before + "".join(f"{self._trimmed(line)}\n" for line in lines if self._is_kept(line))

    def _is_kept(self, line: str) -> bool:
        is_frame = line.lstrip().startswith("File ")
        self._called_the_cell &= is_frame
        kept = not self._called_the_cell and not line.startswith("Extension modules:")
        self._called_the_cell |= is_frame and _CELL.search(line) is not None
        return kept

    @staticmethod
    def _trimmed(line: str) -> str:
        return _CELL.sub("the cell", line)
