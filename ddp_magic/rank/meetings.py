"""The user's collectives are met by every rank before they begin.

gloo ends the whole process where two ranks give tensors of different sizes, waits for ever for a
rank that does not come, and for what two ranks call differently. So each rank first shows, on the
`Board`, what it is about to call, and waits there for the others to come with the same. What does
not fit is an error that names it, on every rank, and the process group stays sound.

To meet takes as long as a small collective, so it is left out where the call is the one that has
always come next in this cell (`Habits`), as in a loop. A rank that then calls something else does
meet, and so sends nothing that the others could take for theirs: they are found to wait in vain.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial, wraps
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from ddp_magic.core.cell import CELL_FOLDER
from ddp_magic.core.ranks import named
from ddp_magic.errors import CollectiveError
from ddp_magic.rank.board import Board
from ddp_magic.rank.frames import library_user
from ddp_magic.rank.patching import Patches

# What of the arguments has to be alike on all ranks: tensors by size and type.
_TENSOR = {
    "all_reduce": "tensor",
    "broadcast": "tensor",
    "reduce": "tensor",
    "all_gather": "tensor",
    "gather": "tensor",
    "scatter": "tensor",
    "all_gather_into_tensor": "input_tensor",
    "reduce_scatter": "",
    "reduce_scatter_tensor": "output",
    "all_to_all": "",
    "all_to_all_single": "",
    "barrier": "",
}
_ROOT = ("src", "dst", "group_src", "group_dst")
_OF_OBJECTS = (
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
)
_let_others_run = getattr(os, "sched_yield", partial(time.sleep, 0))
_LONGEST_RUN = 100_000  # of like calls in a row that is remembered
_YIELDS = 20  # how often another process may run before this one sleeps
_FIRST_SLEEP_S = 0.00005
_LONGEST_SLEEP_S = 0.005
_SLEEP_SHARE = 0.05  # of the time waited so far


class Meetings:
    """Has the ranks meet before each collective of the user's on the whole process group.

    Attributes
    ----------
    active
        Whether every rank runs the present cell.
    unmet
        The collective of this cell that not every rank came to, or ``""``.
    clash
        How the ranks' calls differ, if they did in this cell; or ``""``.
    """

    def __init__(self) -> None:
        self.active = False
        self.unmet = self.clash = ""
        self._board: Board | None = None
        self._group: Any = None  # the process group whose ranks meet there
        self._patches = Patches()
        self._number = self._verified = 0
        self._habits = Habits()
        self._awaited = ("", 0)  # what is being waited for, as told, and its number
        self._line = ""  # where it was called
        self._freed = False
        self._title = ""  # of the function that makes collectives of its own

    def install(self) -> None:
        """Take up the user's calls."""
        modules = (dist, distributed_c10d)
        for name in _TENSOR:
            self._patches.replace_in(modules, name, self._met)
        for name in _OF_OBJECTS:
            self._patches.replace_in(modules, name, self._titled)
        self._patches.replace_in(modules, "new_group", self._met_new_group)

    def uninstall(self) -> None:
        """Give torch its functions back."""
        self._patches.undo()
        self._close()

    def on_new_group(self, path: str) -> None:
        """Use the board at ``path``, with the ranks of the process group that there is now."""
        self._close()
        self._group = dist.group.WORLD
        if dist.get_world_size() > 1:
            self._board = Board(path, dist.get_rank(), dist.get_world_size())

    def begin_cell(self, cell: int, everyone: bool) -> None:
        """Begin a cell; ``cell`` is the same on all ranks that run it."""
        self.active = everyone
        self.unmet = self.clash = ""
        self._freed = False
        self._number = self._verified = 0
        self._habits = Habits()
        if self._board is not None and everyone:
            self._board.begin_cell(cell)

    def end_cell(self, failed: bool) -> None:
        """Let ranks that wait for this one know that it does not come."""
        if self._board is not None and self.active:
            if not (failed or self.clash):  # calls that did not wait have not been compared yet
                number = self._first_clash(self._board)
                self.clash = _told_clash(self._board, number) if number else ""
            self._board.end_cell(failed)
        self.active = False

    def free(self) -> None:
        """End the waiting; may be called on any thread."""
        self._freed = True

    def waits(self) -> tuple[str, list[int]]:
        """Return the call that waits here, and for which ranks; may be called on any thread."""
        board, (told, number) = self._board, self._awaited
        if board is None or not told:
            return "", []
        ranks = [rank for rank in range(board.world_size) if not board.has_entered(rank, number)]
        return told, ranks

    def is_needed_by(self, rank: int) -> bool:
        """Whether a rank waits for a collective that this one has not come to yet."""
        return self._board is not None and self._board.waits_beyond(rank, self._number)

    def _close(self) -> None:
        if self._board is not None:
            self._board.close()
            self._board = None

    # --- the user's calls

    def _met(self, original: Callable[..., Any]) -> Callable[..., Any]:
        name = original.__name__
        parameters = inspect.signature(original).parameters
        names, op = tuple(parameters), parameters.get("op")

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            board = self._board
            if board is not None and self._applies():
                given = dict(zip(names, args, strict=False)) | kwargs
                group, tensor = given.get("group"), given.get(_TENSOR[name])
                if group in (None, dist.group.WORLD) and _on_cpu(tensor):
                    root = next((given[key] for key in _ROOT if given.get(key) is not None), 0)
                    reduction = given.get("op", op and op.default)
                    reduction = getattr(reduction, "op", reduction)  # of a `ReduceOp`
                    kind = f"{name} {reduction} {root}"
                    if isinstance(tensor, Tensor):
                        kind += f" {tensor.numel()} {tensor.dtype}"
                    told = f"{self._title or name}{_described(tensor)}{_apart(reduction, root)}"
                    self._meet(board, told, kind, not given.get("async_op"), sys._getframe(1))
            return original(*args, **kwargs)

        return call

    def _met_new_group(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @wraps(original)
        def new_group(*args: Any, **kwargs: Any) -> Any:
            board = self._board
            if board is not None and self._applies():
                given = signature.bind(*args, **kwargs).arguments
                if not given.get("use_local_synchronization"):
                    ranks = given.get("ranks")
                    told = f"new_group({'' if ranks is None else sorted(ranks)})"
                    self._meet(board, told, told, True, sys._getframe(1))
            return original(*args, **kwargs)

        return new_group

    def _titled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            before, self._title = self._title, self._title or original.__name__
            try:
                return original(*args, **kwargs)
            finally:
                self._title = before

        return call

    def _applies(self) -> bool:
        # What another thread calls, and when, cannot be told from here.
        is_main = threading.current_thread() is threading.main_thread()
        return self.active and is_main and dist.group.WORLD is self._group

    # --- meeting

    def _meet(self, board: Board, told: str, kind: str, waits: bool, frame: FrameType) -> None:
        """Wait until every rank is about to call the same, or has to if it does not wait.

        Raises
        ------
        CollectiveError
            A rank does not come, or calls something else.
        """
        if self._habits.expects(kind):
            return self._habits.learn(kind)
        self._number += 1
        self._awaited, self._line = (told, self._number), _line(frame)
        try:
            if not board.has_room(self._number):
                self._poll(lambda: board.has_room(self._number))
            board.enter(self._number, f"{told}{self._line}", kind)
            if waits:
                board.wait(self._number)
                for rank in range(board.world_size):
                    self._await(board, rank)
                self._verify(board)
            self._habits.learn(kind)
        finally:
            self._awaited = ("", 0)
            board.wait(0)

    def _await(self, board: Board, rank: int) -> None:
        number = self._number
        if board.has_entered(rank, number):
            return
        self._poll(lambda: board.has_ended(rank) or board.has_entered(rank, number))
        if not board.has_entered(rank, number):  # it may have done so and ended
            self._refuse_absence(board)

    def _poll(self, is_settled: Callable[[], bool]) -> None:
        for _ in range(_YIELDS):
            if is_settled():
                return
            _let_others_run()
        began_s, sleep_s = time.monotonic(), _FIRST_SLEEP_S
        while not is_settled():
            if self._freed:
                self.unmet = self._awaited[0] + self._line
                raise CollectiveError(f"waited in {self.unmet} in vain.")
            time.sleep(sleep_s)
            waited_s = time.monotonic() - began_s
            sleep_s = min(max(_FIRST_SLEEP_S, waited_s * _SLEEP_SHARE), _LONGEST_SLEEP_S)

    def _refuse_absence(self, board: Board) -> None:
        others = [r for r in range(board.world_size) if board.has_ended(r)]
        failed = [rank for rank in others if board.has_failed(rank)]
        self.unmet = self._awaited[0] + self._line
        what = f"{named(failed)} had failed" if failed else f"{named(others)} had ended the cell"
        raise CollectiveError(
            f"waited in {self.unmet} in vain: {what}.",
            fix="" if failed else "Every rank has to make the same collectives.",
        )

    def _verify(self, board: Board) -> None:
        """See that all entries since the last look are alike."""
        number = self._first_clash(board)
        if number in (0, self._number):  # the last has not begun: who takes the error can go on
            self._verified = self._number
        if number:
            told = _told_clash(board, number)
            self.clash = self.clash or told
            raise CollectiveError(
                told,
                fix="Every rank has to make the same collectives, in the same order, on "
                "tensors of the same size and type.",
            )

    def _first_clash(self, board: Board) -> int:
        """Return the first entry since the last look that ranks have made differently, or 0."""
        for number in range(self._verified + 1, self._number + 1):
            ranks = _entered(board, number)
            if not all(board.is_alike(rank, number) for rank in ranks):
                return number
        return 0


def _entered(board: Board, number: int) -> list[int]:
    return [rank for rank in range(board.world_size) if board.has_entered(rank, number)]


def _told_clash(board: Board, number: int) -> str:
    calls = {rank: board.text(rank, number) for rank in _entered(board, number)}
    return f"The ranks' calls do not match: {_grouped(calls)}."


class Habits:
    """What has followed what, in a sequence that is the same on all ranks.

    A call is expected if it is all that ever followed the one before, or that followed as many of
    it in a row. Ranks with the same past expect the same; none expects two.
    """

    def __init__(self) -> None:
        self._last, self._run = "", 0
        self._after: dict[str, set[str]] = {}
        self._after_run: dict[tuple[str, int], set[str]] = {}

    def expects(self, kind: str) -> bool:
        """Whether this is what comes next."""
        only = {kind}
        return (
            self._after.get(self._last) == only
            or self._after_run.get((self._last, self._run)) == only
        )

    def learn(self, kind: str) -> None:
        """Take note of what came next."""
        self._after.setdefault(self._last, set()).add(kind)
        if self._run < _LONGEST_RUN:
            self._after_run.setdefault((self._last, self._run), set()).add(kind)
        self._run = self._run + 1 if kind == self._last else 1
        self._last = kind


def _on_cpu(tensor: Any) -> bool:
    return not isinstance(tensor, Tensor) or tensor.device.type == "cpu"


def _described(tensor: Any) -> str:
    if not isinstance(tensor, Tensor):
        return ""
    return f" of {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _apart(reduction: Any, root: int) -> str:
    """Return what tells calls apart that give the same: an operation or a root, if not usual."""
    operation = getattr(reduction, "name", "SUM")
    return f"{f', {operation}' * (operation != 'SUM')}{f', root {root}' * bool(root)}"


def _line(frame: FrameType) -> str:
    user = library_user(frame)
    if user is None:
        return ""
    path = user.f_code.co_filename
    file = "" if CELL_FOLDER in path else f" of {os.path.basename(path)}"
    return f" (line {user.f_lineno}{file})"


def _grouped(calls: dict[int, str]) -> str:
    groups: dict[str, list[int]] = {}
    for rank, call in calls.items():
        groups.setdefault(call, []).append(rank)
    return ", ".join(f"{named(ranks)} {call}" for call, ranks in groups.items())
