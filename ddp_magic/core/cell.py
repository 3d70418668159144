"""A notebook cell as text: what stands above the code, and the code."""

from __future__ import annotations

import re

CELL_FOLDER = "ddp_cell"  # where the file names of cells are said to lie, below the temp folder
_BLANK_LINES = re.compile(r"(?:[ \t]*\n)*")


def split_cell(line: str, body: str, whole: str = "") -> tuple[str, str]:
    """Split a ``%%ddp`` cell so that the code's line numbers can be those of the whole cell.

    Parameters
    ----------
    line
        What stands after ``%%ddp``.
    body
        The lines below it.
    whole
        The notebook's cell, of which these may be a part: below ``%%time``, for one.

    Returns
    -------
    header : str
        The magic's line, any above it, as comments, and the blank lines below it, which IPython
        drops before it counts.
    code : str
        The rest.
    """
    blank = _BLANK_LINES.match(body)
    end = blank.end() if blank else 0
    own = f"%%ddp {line}".rstrip() + "\n" + body[:end]
    return "".join(f"# {one}" for one in _above(body, whole)) + own, body[end:]


def _above(body: str, whole: str) -> list[str]:
    """Return the lines that stand above the magic's in the whole cell."""
    if not body.strip() or not whole.rstrip().endswith(body.rstrip()):
        return []
    return whole[: len(whole.rstrip()) - len(body.rstrip())].splitlines(keepends=True)[:-1]
