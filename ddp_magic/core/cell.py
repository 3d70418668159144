"""A notebook cell as text: what stands above the code, and the code."""

from __future__ import annotations

import re

CELL_FOLDER = "ddp_cell"  # where the file names of cells are said to lie, below the temp folder
_BLANK_LINES = re.compile(r"(?:[ \t]*\n)*")


def split_cell(line: str, body: str) -> tuple[str, str]:
    """Split a ``%%ddp`` cell so that the code's line numbers can be those of the whole cell.

    Parameters
    ----------
    line
        What stands after ``%%ddp``.
    body
        The lines below it.

    Returns
    -------
    header : str
        The magic's line and the blank lines below it, which IPython drops before it counts.
    code : str
        The rest.
    """
    blank = _BLANK_LINES.match(body)
    end = blank.end() if blank else 0
    return f"%%ddp {line}".rstrip() + "\n" + body[:end], body[end:]
