"""Reads what faulthandler writes of a rank that answers nothing: compiled code holds the GIL."""

from __future__ import annotations

import re

from ddp_magic.core.cell import CELL_FOLDER
from ddp_magic.core.where import Place

_FRAME = re.compile(r'  File "(?P<path>.*)", line (?P<line>\d+) in ')
_FOREIGN = ("/lib/python", "-packages/", "/ddp_magic/", "<frozen", "<string>")


def read_place(dump: str, code: str) -> Place:
    """Return where the user's code was.

    Parameters
    ----------
    dump
        What faulthandler has written, the innermost frame first; what is older stands above.
    code
        The cell, magic line included.
    """
    latest = dump.rpartition("(most recent call first):")[2]
    for frame in _FRAME.finditer(latest):
        path, line = frame["path"], int(frame["line"])
        if CELL_FOLDER in path:
            lines = code.splitlines()
            return Place(line, lines[line - 1].strip() if line <= len(lines) else "")
        if not any(part in path for part in _FOREIGN):
            return Place(line, file=path.rpartition("/")[2])
    return Place(None)
