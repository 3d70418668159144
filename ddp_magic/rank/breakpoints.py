"""Has the user's breakpoints stop a rank in its debugger, or says that they were passed over."""

from __future__ import annotations

import bdb
import os
import pdb
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

import torch.distributed as dist
from IPython.core import debugger

from ddp_magic.core.where import Place
from ddp_magic.rank.debugger import RankPdb
from ddp_magic.rank.patching import Patches
from ddp_magic.rank.prompts import Prompts
from ddp_magic.rank.report import Report
from ddp_magic.rank.shell import RankShell, cell_folder, this_shell
from ddp_magic.rank.where import place_of


class Breakpoints:
    """Has `breakpoint()`, `pdb.set_trace()` and `dist.breakpoint()` stop this rank.

    Parameters
    ----------
    report
        Where it is said that one was passed over.
    """

    def __init__(self, prompts: Prompts, report: Report) -> None:
        self._prompts = prompts
        self._report = report
        self._debugger: RankPdb | None = None
        self._passed_over: set[str] = set()  # where, in this cell
        self._cell = 0  # its number
        self._calls: Counter[tuple[str, int]] = Counter()  # of `dist.breakpoint`, by its place
        self._patches = Patches()

    def install(self) -> None:
        """Begin to."""
        RankPdb.prompts = self._prompts
        for module in (pdb, debugger):
            self._patches.replace(module, "Pdb", lambda _: RankPdb)
            self._patches.replace(module, "set_trace", self._make_set_trace)
        self._patches.replace(sys, "breakpointhook", self._make_hook)
        self._patches.replace(dist, "breakpoint", self._make_dist_breakpoint)
        RankShell.debugger_cls = property(lambda _: RankPdb)  # type: ignore[method-assign,assignment]
        this_shell().InteractiveTB.debugger_cls = RankPdb  # of `%debug` and `%pdb`

    def begin_cell(self, number: int) -> None:
        """Begin a cell; its number is the same on all ranks."""
        self._cell = number

    def end_cell(self) -> None:
        """Stop stepping; forget breakpoints, whose lines are those of the cell."""
        self._passed_over.clear()
        if self._debugger is not None:
            sys.settrace(None)
            self._debugger = None
            bdb.Breakpoint.clearBreakpoints()

    def stop(self, frame: FrameType) -> None:
        """Stop in a frame; go on if nobody could be asked, and say so."""
        sys.settrace(None)
        place = place_of(frame, frame.f_lineno, cell_folder())
        if refusal := self._prompts.refusal:
            return self._pass_over(place, refusal)
        if threading.current_thread() is not threading.main_thread():
            return RankPdb().set_trace(frame)
        if self._debugger is None or self._debugger.is_asking:
            self._debugger = RankPdb()
        self._debugger.set_trace(frame)

    def _pass_over(self, place: Place, why: str) -> None:
        if place.line_text in self._passed_over:
            return
        self._passed_over.add(place.line_text)
        text = f"breakpoint() on {place.line_text} was passed over: {why}"
        if os.getpid() == self._prompts.process:
            self._report.notice(f"breakpoint:{self._cell}:{place.line_text}", text)
        else:
            print(f"ddp: {text}", file=sys.__stderr__, flush=True)

    def _make_hook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def hook(*args: Any, **kwargs: Any) -> Any:
            trace = sys.gettrace()
            sys.settrace(None)  # `step` is not to stop in what is called here
            if os.environ.get("PYTHONBREAKPOINT"):  # which chooses another, or none
                sys.settrace(trace)
                return original(*args, **kwargs)
            return self.stop(sys._getframe(1))

        return hook

    def _make_set_trace(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def set_trace(frame: FrameType | None = None, *_: Any, **__: Any) -> None:
            self.stop(frame or sys._getframe(1))

        return set_trace

    def _make_dist_breakpoint(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def breakpoint(rank: int = 0, skip: int = 0, timeout_s: float = 3600) -> None:
            """Stop one rank; the others wait, however long it takes."""
            frame = sys._getframe(1)
            place = frame.f_code.co_filename, frame.f_lineno
            self._calls[place] += 1
            if self._calls[place] <= skip:
                return
            trace = sys.gettrace()
            sys.settrace(None)
            if dist.get_rank() == rank:
                self.stop(frame)
                trace = sys.gettrace()
            sys.settrace(None)
            dist.barrier()
            sys.settrace(trace)

        return breakpoint
