"""This rank's stacks, for whoever asks where it is, also while its main thread is stuck."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Iterable
from dataclasses import replace
from types import FrameType
from typing import Any

from ddp_magic.rank import where
from ddp_magic.rank.engine import current
from ddp_magic.rank.frames import as_imported
from ddp_magic.rank.shell import cell_folder, this_shell

_MOST_FRAMES = 60  # of one stack: half of them at either end
_MOST_THREADS = 8
_LONGEST_SOURCE = 160


def stacks(_: dict[str, Any]) -> dict[str, Any]:
    """Return where this rank's threads are (see `ddp_magic.core.stacks.RankStack`).

    Returns
    -------
    dict of str to Any
        ``look``, of `ddp_magic.core.deadlock.Look`; ``frames`` of the main thread, the innermost
        first, down to the outermost of the user's; ``left_out``, how many of them are missing in
        the middle; and ``threads``: name and innermost frame of the user's of each other one.
    """
    look, stack = current().look(), where.main_stack()
    place = where.place_in(stack, cell_folder())
    if call := look.pop("call"):
        place = replace(place, collective=call)
    main = threading.main_thread().ident
    frames = _down_to_users(stack)
    shown = frames
    if len(frames) > _MOST_FRAMES:
        shown = frames[: _MOST_FRAMES // 2] + frames[-_MOST_FRAMES // 2 :]
    return {
        "look": {"place": vars(place), **look},
        "frames": [_told(*one) for one in shown],
        "left_out": len(frames) - len(shown),
        "threads": _threads(main),
    }


def _down_to_users(stack: Iterable[where.Standing]) -> list[where.Standing]:
    """Leave out what runs the user's code: the shell, the kernel, the loop."""
    found = list(stack)
    while found and not where.is_users(found[-1][0]):
        found.pop()
    return found


def _threads(main: int | None) -> list[tuple[str, dict[str, Any]]]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for ident, innermost in list(sys._current_frames().items()):
        users = next(filter(where.is_users, where.outwards(innermost)), None)
        if ident != main and users is not None:
            found.append((names.get(ident, str(ident)), _told(users, users.f_lineno or 0)))
    return found[:_MOST_THREADS]


def _told(frame: FrameType, line: int) -> dict[str, Any]:
    code = frame.f_code
    cell = this_shell().compile.format_code_name(code.co_filename)
    in_cell = code.co_filename.startswith(cell_folder())
    name = code.co_name if code.co_name != "<module>" else ""
    is_users = where.is_users(frame)
    path = code.co_filename if is_users else as_imported(code.co_filename)
    return {
        "file": cell[1] if in_cell and cell else path,
        "line": line,
        "function": name,
        "source": linecache.getline(code.co_filename, line).strip()[:_LONGEST_SOURCE],
        "is_users": is_users,
    }
