"""What the interpreter writes as compiled code crashes, cut down to what is the user's."""

from __future__ import annotations

import re

_CELL = re.compile(r'File "[^"]*/ddp_cell/[^"]*"')
_HEADING = "(most recent call first):"


def trim_crash(text: str) -> str:
    """Leave out the frames that called the cell, and the list of extension modules.

    Text that is no such report is returned as it is.
    """
    if _HEADING not in text:
        return text
    kept: list[str] = []
    called_the_cell = False
    for line in text.splitlines(keepends=True):
        is_frame = line.lstrip().startswith("File ")
        called_the_cell &= is_frame
        if called_the_cell or line.startswith("Extension modules:"):
            continue
        kept.append(_CELL.sub("the cell", line))
        called_the_cell = is_frame and _CELL.search(line) is not None
    return "".join(kept)
