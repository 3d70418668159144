"""Watches ranks from which nothing comes: says where they are, frees those that wait in vain."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from ddp_magic.core.standstill import Look, Standstill
from ddp_magic.core.view import View
from ddp_magic.core.where import Place, describe_places
from ddp_magic.kernel.world import World

_QUIET_S = 10.0  # how long nothing comes before it is said where the ranks are
_ASK_S = 5.0  # how long that stands before it is asked again
_LOOK_S = 0.25  # between two looks at ranks which may wait for others that have left the cell


class Vigil:
    """Over the ranks of one cell.

    Parameters
    ----------
    engines
        The engine of each rank.
    post
        Has a function called on the thread that follows the cell; may be called on any thread.

    Attributes
    ----------
    freed
        Where each rank that was freed waited.
    heard_s
        When something last came, on `time.monotonic`'s clock.
    """

    def __init__(
        self,
        world: World,
        engines: Mapping[int, int],
        view: View,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self.freed: dict[int, str] = {}
        self._world = world
        self._engines = engines
        self._view = view
        self._post = post
        self.heard_s = self._asked_s = time.monotonic()
        self._quiet = False  # whether it has been said that nothing comes
        self._asking = False
        self._places: dict[int, Place] = {}
        self._standstill = Standstill()
        self._looked_s = -math.inf

    def hear(self) -> None:
        """Note that something came."""
        now_s = time.monotonic()
        if self._quiet:
            self._view.notice(f"ddp: nothing was printed for {now_s - self.heard_s:.0f} s")
            self._quiet = False
            self._places.clear()
        self.heard_s = now_s

    def tell_quiet(self, now_s: float, busy: Collection[int]) -> None:
        """Say where the busy ranks are, while nothing comes from them."""
        if now_s - self.heard_s > _QUIET_S and now_s - self._asked_s > _ASK_S:
            if self._asked_s > self.heard_s and self._places.keys() < set(busy):
                self._show_places(busy)  # some have not answered
            self._asked_s = now_s
            self._places.clear()
            self._asking = True
            self._look(busy)

    def free_who_waits(self, now_s: float, busy: Collection[int], ended_s: float) -> None:
        """Free the busy ranks if all of them wait, for some that have ended or for each other.

        Parameters
        ----------
        ended_s
            When last a rank ended the cell, or since when none can have helped another, on
            `time.monotonic`'s clock.
        """
        if self.freed or now_s - max(ended_s, self._looked_s) < _LOOK_S:
            return
        self._looked_s = now_s
        if not self._standstill.holds(tuple(busy)):
            return self._look(busy)
        self.freed = {rank: self._standstill.waiting[rank].where for rank in busy}
        for engine_id in self._engines.values():
            self._world.client.free(engine_id)

    def _look(self, busy: Collection[int]) -> None:
        for rank in busy:
            reply = self._world.client.ask_where(self._engines[rank])
            reply.add_done_callback(partial(self._receive, rank, busy))

    def _receive(self, rank: int, busy: Collection[int], reply: Any) -> None:
        if isinstance(message := reply.result(), dict):  # not an error: it may have ended meanwhile
            self._post(partial(self._note, rank, busy, message["content"]))

    def _note(self, rank: int, busy: Collection[int], content: dict[str, Any]) -> None:
        place = Place.from_wire(content.pop("place"))
        self._standstill.see(rank, Look(place, **content))
        self._places[rank] = place
        if self._asking and self._places.keys() >= set(busy):
            self._show_places(busy)

    def _show_places(self, busy: Collection[int]) -> None:
        self._asking = False
        quiet_s = time.monotonic() - self.heard_s
        places = {rank: self._places.get(rank, Place(None)) for rank in busy}
        if places and quiet_s > _QUIET_S:
            self._quiet = True
            told = describe_places(places)
            self._view.progress(f"ddp: nothing printed for {quiet_s:.0f} s: {told}")
