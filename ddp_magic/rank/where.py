"""Where this rank's main thread is; asked on another thread, also while it is stuck."""

from __future__ import annotations

import linecache
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from ddp_magic.core.where import Place
from ddp_magic.rank.frames import is_library

_NOWHERE = ("<frozen", "<string>")  # not in a file: of Python, or the code the process began with
_ENGINE = "_engine_run_backward"
_COLLECTIVES = (
    "torch.distributed.distributed_c10d",
    "torch.distributed._functional_collectives",
    "ddp_magic.rank.guard",  # `Work.wait`
)
_DISTRIBUTED = ("torch.distributed", "torch.nn.parallel.distributed")  # compiled code below them
_ALONE = tuple(  # among them, what waits for nobody itself
    f"torch.distributed.{name}."
    for name in ("c10d_logger", "tensor", "_tensor", "_shard", "_tools", "elastic")
)
_IMPORT = "<frozen importlib"
_OWN = {  # what the user has not called by name
    "ddp_magic.rank.rounds": "the ranks' agreement on what they train",
    "ddp_magic.rank.sharing": "the ranks' agreement on a loader's order",
}
_SCHEDULED = "/proc/self/task"

Standing = tuple[FrameType, int]  # a frame, and the line it was at


def main_stack() -> list[Standing]:
    """Return the main thread's frames, innermost first, each with its line: they run on."""
    innermost = sys._current_frames().get(threading.main_thread().ident or 0)
    return [(frame, frame.f_lineno or 0) for frame in outwards(innermost)]


def main_place(cell_folder: str) -> Place:
    """Return where the user's code is on the main thread.

    Parameters
    ----------
    cell_folder
        Where the file names of cells are said to lie.
    """
    return place_in(main_stack(), cell_folder)


def place_in(stack: Sequence[Standing], cell_folder: str) -> Place:
    """Return where the user's code is in a stack of `main_stack`."""
    user = next((one for one in stack if is_users(one[0])), None)
    if user is None:
        return Place(0)
    innermost, calls = stack[0][0], _calls(stack)
    return replace(
        place_of(*user, cell_folder),
        collective=calls[-1] if calls else "",
        # A node of the graph that runs Python code would stand above.
        in_backward=innermost.f_code.co_name == _ENGINE,
    )


def place_of(frame: FrameType, line: int, cell_folder: str) -> Place:
    """Return what a line of a frame's code is called."""
    path = frame.f_code.co_filename
    return Place(
        line=line,
        source=linecache.getline(path, line, frame.f_globals).strip(),
        file="" if path.startswith(cell_folder) else os.path.basename(path),
    )


def has_threads() -> bool:
    """Return whether code of the user's runs on another thread than the main one."""
    main = threading.main_thread().ident
    others = [frame for ident, frame in sys._current_frames().items() if ident != main]
    return any(is_users(frame) for innermost in others for frame in outwards(innermost))


def thread_ids() -> frozenset[str]:
    """Return the system's numbers for the threads of this process."""
    return frozenset(os.listdir(_SCHEDULED)) if os.path.isdir(_SCHEDULED) else frozenset()


def work_s(leaving_out: frozenset[str]) -> float:
    """Return for how long threads of this process have run, or have waited for a processor.

    Those that have ended are not in it, so it may be less than it was.

    Parameters
    ----------
    leaving_out
        Threads (see `thread_ids`) that do no work of the user's.
    """
    tasks = []
    for one in thread_ids() - leaving_out:
        with suppress(OSError):  # it has just ended
            tasks.append(Path(_SCHEDULED, one, "schedstat").read_text())
    if not tasks:  # another system than Linux
        return time.process_time()
    return sum(int(number) for task in tasks for number in task.split()[:2]) / 1e9


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, its caller, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_users(frame: FrameType) -> bool:
    """Tell whether a frame runs code of the user's, and not of a library."""
    return not (is_library(frame) or frame.f_code.co_filename.startswith(_NOWHERE))


def _calls(stack: Sequence[Standing]) -> list[str]:
    """Return what a stack waits in for other ranks, innermost first."""
    calls: list[str] = []
    in_library = True
    for frame, _ in stack:
        in_library = in_library and not is_users(frame)
        if in_library and frame.f_code.co_filename.startswith(_IMPORT):
            calls.clear()  # a library that is being imported waits for nobody
        elif name := _call(frame, innermost=frame is stack[0][0]):
            calls.append(name)
    return calls


def _call(frame: FrameType, *, innermost: bool) -> str:
    """Return what a frame waits in, if it is one that waits for other ranks."""
    module = _module(frame)
    if module in _OWN:
        return _OWN[module]
    name = frame.f_code.co_name
    compiled = innermost and module.startswith(_DISTRIBUTED) and not _is_alone(module)
    return name if (module in _COLLECTIVES or compiled) and name != "<module>" else ""


def _is_alone(module: str) -> bool:
    return f"{module}.".startswith(_ALONE)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
