"""Rounds in which the ranks show each other a few numbers, through the process group's store.

A collective that not every rank joins never returns. A round does: as a rank ends its cell, it
leaves a mark for those that still wait for it. Waiting is Python code, so Stop ends it too.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddp_magic.core.advice import advice_on
from ddp_magic.core.ranks import named
from ddp_magic.errors import CollectiveError

_FIRST_POLL_S = 0.0001
_LONGEST_POLL_S = 0.02
_FAILED = "failed"

Row = list[int]


class Rounds:
    """The rounds of one cell after the other.

    Parameters
    ----------
    is_elsewhere
        Whether a rank waits for this one at something else, and so does not come.

    Attributes
    ----------
    cell
        The number of the cell, the same on all ranks that run it.
    failed
        The ranks that did not come to a round because they have failed.
    unmet
        What was waited for in vain, because of them; or ``""``.
    freed
        Set on any thread, it ends the waiting.
    awaits
        The rank that is being waited for.
    """

    def __init__(self, is_elsewhere: Callable[[int], bool] | None = None) -> None:
        self._is_elsewhere = is_elsewhere or (lambda rank: False)
        self.awaits: int | None = None
        self.cell = 0
        self.freed = False
        self.failed: list[int] = []
        self.unmet = ""
        self._number = 0

    @property
    def last(self) -> tuple[int, int]:
        """Which round was the last: cell and number, the same on all ranks that came to it."""
        return self.cell, self._number

    def begin_cell(self, cell: int) -> None:
        """Begin anew, with all ranks that run this cell."""
        self.cell = cell
        self.freed = False
        self.failed = []
        self.unmet = ""
        self._number = 0

    def end_cell(self, failed: bool = False) -> None:
        """Tell those that wait in a round of this cell that this rank will not come."""
        self._show("end", _FAILED if failed else "")

    def refuse_if_failed(self, what: str) -> None:
        """Raise `CollectiveError` if a rank has failed instead of coming to ``what``."""
        if self.failed:
            self.unmet = what
            raise CollectiveError(f"waited in {what} in vain: {named(self.failed)} had failed.")

    def exchange(self, row: Sequence[int]) -> list[Row | None]:
        """Show the other ranks some numbers, and return what each showed in its same round.

        Returns
        -------
        list of (list of int or None)
            In rank order; None of a rank that has ended the cell, or waits for this one elsewhere.
        """
        self._number += 1
        name = str(self._number)
        self._show(name, json.dumps(list(row)))
        return [self._receive(name, rank) for rank in range(dist.get_world_size())]

    def _receive(self, name: str, rank: int) -> Row | None:
        self.awaits = rank if rank != dist.get_rank() else None
        try:
            return self._await(name, rank)
        finally:
            self.awaits = None

    def _show(self, name: str, value: str) -> None:
        try:
            self._store().set(self._key(name), value)
        except dist.DistStoreError as error:
            raise dist.DistStoreError(
                f"The file in which the ranks meet, in {tempfile.gettempdir()}, cannot be written:"
                f" {error}. {advice_on(str(error))}".strip()
            ) from None

    def _await(self, name: str, rank: int) -> Row | None:
        store, shown, ended = self._store(), self._key(name, rank), self._key("end", rank)
        poll_s = _FIRST_POLL_S
        while True:
            # Before the row: it may have shown that and gone on.
            has_ended, elsewhere = store.check([ended]), self._is_elsewhere(rank)
            if store.check([shown]):
                row: Row = json.loads(store.get(shown))
                return row
            if has_ended:
                self.failed += [rank] if store.get(ended).decode() == _FAILED else []
                return None
            if elsewhere:
                return None
            if self.freed:
                raise CollectiveError("freed: the other ranks do not come")
            time.sleep(poll_s)
            poll_s = min(2 * poll_s, _LONGEST_POLL_S)

    def _key(self, name: str, rank: int | None = None) -> str:
        return f"cell {self.cell}/{name}/{dist.get_rank() if rank is None else rank}"

    @staticmethod
    def _store() -> dist.Store:
        return distributed_c10d._get_default_store()
