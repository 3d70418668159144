"""Where this rank's main thread is; asked on another thread, also while it is stuck."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from ddp_magic.core.where import Place

_FOREIGN = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
    "<frozen",
    "<string>",  # the code with which the process began
)
_ENGINE = "_engine_run_backward"
_COLLECTIVES = "torch.distributed.distributed_c10d"


def main_place(cell_folder: str) -> Place:
    """Return where the user's code is on the main thread.

    Parameters
    ----------
    cell_folder
        Where the file names of cells are said to lie.
    """
    frames = list(_stack())
    user = next((frame for frame in frames if _is_users(frame)), None)
    if user is None:
        return Place(0)
    path, line = user.f_code.co_filename, user.f_lineno
    calls = [frame.f_code.co_name for frame in frames if _module(frame) == _COLLECTIVES]
    return Place(
        line=line,
        source=linecache.getline(path, line, user.f_globals).strip(),
        file="" if path.startswith(cell_folder) else os.path.basename(path),
        collective=calls[-1] if calls else "",
        in_backward=any(frame.f_code.co_name == _ENGINE for frame in frames),
    )


def _stack() -> Iterator[FrameType]:
    """Yield the main thread's frames, innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_users(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(_FOREIGN)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
