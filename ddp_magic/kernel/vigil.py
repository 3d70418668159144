"""Watches ranks from which nothing comes: says where they are, frees those that wait in vain."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ddp_magic.core.cellrecord import CellRecord
from ddp_magic.core.deadlock import Look, clash, in_vain
from ddp_magic.core.stackdump import read_place
from ddp_magic.core.standstill import Standstill
from ddp_magic.core.view import View
from ddp_magic.core.where import Place, describe_places
from ddp_magic.kernel.world import World

_QUIET_S = 10.0  # how long nothing comes before it is said where the ranks are
_TELL_S = 5.0  # how long that stands before it is said again
_STILL_S = 1.0  # how long nothing comes before ranks are looked at
_LOOK_S = 0.25  # between two looks
_SOON_S = 0.1  # the same, when some have ended the cell
_END_TOGETHER_S = 0.04  # after the first rank's end, in which most others end as well
_ANSWER_S = 1.0  # how long a look waits for all to answer


class Vigil:
    """Over the ranks of one cell.

    Parameters
    ----------
    engines
        The engine of each rank.
    record
        Where it is noted who waited in vain.
    code
        The cell, magic line included.
    post
        Has a function called on the thread that follows the cell; may be called on any thread.

    Attributes
    ----------
    heard_s
        When something last came, on `time.monotonic`'s clock.
    """

    def __init__(
        self,
        world: World,
        engines: Mapping[int, int],
        record: CellRecord,
        code: str,
        view: View,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._world = world
        self._engines = engines
        self._record = record
        self._code = code
        self._view = view
        self._post = post
        self.heard_s = self._told_s = time.monotonic()
        self._quiet = False  # whether it has been said that nothing comes
        self._numbers = itertools.count()
        self._number = -1  # of the present round of looks
        self._looked_s = -math.inf
        self._alone_s: float | None = None  # since when some are in the cell and others are not
        self._before: dict[int, Look] = {}  # of the round before
        self._seen: dict[int, Look] = {}
        self._latest: dict[int, Look] = {}
        self._standstill = Standstill()

    def hear(self) -> None:
        """Note that something came."""
        now_s = time.monotonic()
        if self._quiet:
            self._view.notice(f"ddp: nothing was printed for {now_s - self.heard_s:.0f} s")
            self._quiet = False
        self.heard_s = now_s

    def watch(
        self,
        now_s: float,
        busy: Collection[int],
        ended: Mapping[int, Mapping[str, int]],
        gone: Collection[int],
    ) -> None:
        """Look at the busy ranks if nothing comes, and free them if some wait in vain.

        Parameters
        ----------
        ended
            How many collectives each rank that has ended the cell has begun, by process group.
        gone
            Ranks that have died, or do not run the cell.
        """
        if self._record.has_freed or not (ended or gone or now_s - self.heard_s > _STILL_S):
            return
        if self._alone_s is None and (ended or gone):
            self._alone_s = now_s
        # Mostly all are about to end: to be asked just then would make every cell slower.
        if self._alone_s is not None and now_s - self._alone_s < _END_TOGETHER_S:
            return
        patience_s = (
            _ANSWER_S if not self.has_answers(busy) else _SOON_S if ended or gone else _LOOK_S
        )
        if now_s - self._looked_s < patience_s:
            return
        still = {
            rank: look
            for rank, look in self._seen.items()
            if rank in busy and rank in self._before and look.is_like(self._before[rank])
        }
        vain = in_vain(still, ended, gone)
        if not vain and self._standstill.holds(tuple(busy)):
            vain = set(busy)
        if vain:
            self._record.in_vain = {rank: self._latest[rank].where for rank in sorted(vain)}
            self._record.clash = clash({rank: self._latest[rank] for rank in vain})
            # The connections of all are ended, also of those of which it was not known yet.
            others = [rank for rank in busy if rank not in vain]
            self._record.places.update({rank: self._ended_place(rank) for rank in others})
            self.free()
        else:
            self._tell_quiet(now_s, busy)
            self.look(busy)

    def look(self, busy: Collection[int]) -> None:
        """Ask ranks where they are; they answer at once unless compiled code lets no other run."""
        self._looked_s = time.monotonic()
        self._before, self._seen = self._seen, {}
        self._number = next(self._numbers)
        for rank in busy:
            try:
                reply = self._world.client.ask_where(self._engines[rank])
            except KeyError:  # its engine has gone; that it has died is told next
                continue
            reply.add_done_callback(partial(self._receive, rank, self._number))

    def waiting(self, now_s: float, ranks: Collection[int]) -> dict[int, str]:
        """Look at some ranks, if it is time, and return where those are that wait for others."""
        if ranks and now_s - self._looked_s >= _LOOK_S:
            self.look(ranks)
        looks = {rank: self._seen[rank] for rank in ranks if rank in self._seen}
        return {
            rank: look.where
            for rank, look in looks.items()
            if look.waits and rank in self._before and look.is_like(self._before[rank])
        }

    def begin_anew(self) -> None:
        """Forget what was seen while nothing was to happen."""
        self.heard_s = time.monotonic()
        self._alone_s = None
        self._before, self._seen, self._standstill = {}, {}, Standstill()

    def has_answers(self, busy: Collection[int]) -> bool:
        """Whether all of these ranks have answered the last look."""
        return self._seen.keys() >= set(busy)

    def places(self, busy: Collection[int]) -> dict[int, str]:
        """Return where these ranks are, by the last look at them, those that have answered."""
        return {rank: _told(self._seen[rank]) for rank in busy if rank in self._seen}

    def request_stacks(self, busy: Collection[int]) -> None:
        """Have the ranks that did not answer the last look write where they are."""
        for rank in busy:
            if rank not in self._seen:
                self._world.request_stack(rank)

    def stuck(self, busy: Collection[int]) -> dict[int, str]:
        """Return where those of these ranks are that are in the user's code still.

        By what they were asked to write, if they do not answer.
        """
        silent = [rank for rank in busy if rank not in self._seen]
        places = {rank: read_place(self._world.stack(rank), self._code) for rank in silent}
        written = {
            rank: f"{place} (compiled code that lets no other run)" if place.line else str(place)
            for rank, place in places.items()
        }
        inside = [rank for rank in busy if rank in self._seen and self._seen[rank].place.line]
        return dict(sorted({**written, **self.places(inside)}.items()))

    def free_who_waits(self, busy: Collection[int]) -> None:
        """Free all ranks if one of these was last seen to wait, or in a collective not ended."""
        seen = [self._latest[rank] for rank in busy if rank in self._latest]
        if any(look.waits or look.ops for look in seen):
            self.free()

    def free(self) -> None:
        """End what any rank waits for in a collective; the process group is of no use then."""
        self._record.has_freed = True
        for rank, engine_id in self._world.engines.items():
            if rank not in self._world.dead:
                with suppress(KeyError):  # likewise
                    self._world.client.free(engine_id)

    def _receive(self, rank: int, number: int, reply: Any) -> None:
        if isinstance(message := reply.result(), dict):  # not an error: it may have ended meanwhile
            self._post(partial(self._note, rank, number, message["content"]))

    def _note(self, rank: int, number: int, content: dict[str, Any]) -> None:
        look = Look.from_wire(content)
        self._latest[rank] = look
        if number == self._number:
            self._seen[rank] = look
            self._standstill.see(rank, look)

    def _ended_place(self, rank: int) -> str:
        look = self._latest.get(rank)
        return _told(look) if look is not None and look.waits else "was interrupted"

    def _tell_quiet(self, now_s: float, busy: Collection[int]) -> None:
        """Say where the busy ranks are, while nothing comes from them."""
        quiet_s = now_s - self.heard_s
        if quiet_s > _QUIET_S and now_s - self._told_s > _TELL_S:
            self._told_s = now_s
            self._quiet = True
            unknown = {rank: str(Place(None)) for rank in sorted(busy)}
            told = describe_places(unknown | self.places(busy))
            self._view.progress(f"ddp: nothing printed for {quiet_s:.0f} s: {told}")


def _told(look: Look) -> str:
    return f"waits in {look.where}" if look.waits and look.ops else str(look.place)
