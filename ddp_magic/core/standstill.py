"""Do the ranks that are still in a cell wait for ranks that have left it?

A rank that has ended a cell joins no more of its collectives. So another that waits in one waits
for ever; that it waits, and does not compute, is seen by looking again and again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ddp_magic.core.where import Place

_IDLE_SHARE = 0.1  # of a processor, at most, is used by what waits
_BETWEEN_S = 0.2  # the least time between two looks
_LOOKS = 3  # at which a rank must be seen to wait, one after the other


@dataclass(frozen=True)
class Look:
    """What is seen of a rank at one moment.

    Attributes
    ----------
    place
        Where it is.
    collectives
        How many its process group has begun.
    cpu_s
        The processor time that it has used, or waited for.
    at_s
        When.
    """

    place: Place
    collectives: int
    cpu_s: float
    at_s: float

    def waits_since(self, before: Look) -> bool:
        """Whether it has done nothing since then but wait for other ranks."""
        passed_s = self.at_s - before.at_s
        return (
            self.place.waits
            and self.place == before.place
            and self.collectives == before.collectives
            and self.cpu_s - before.cpu_s < _IDLE_SHARE * passed_s
        )


@dataclass
class Standstill:
    """Finds out that ranks wait in vain.

    Attributes
    ----------
    waiting
        Where each rank that waits does so.
    """

    waiting: dict[int, Place] = field(default_factory=dict)
    _times: dict[int, int] = field(default_factory=dict)
    _first: dict[int, Look] = field(default_factory=dict)

    def see(self, rank: int, look: Look) -> None:
        """Take a look at one rank into account."""
        before = self._first.get(rank)
        if before is None:
            self._first[rank] = look
        elif look.at_s - before.at_s >= _BETWEEN_S:
            self._first[rank] = look
            times = self._times.get(rank, 0) + 1 if look.waits_since(before) else 0
            self._times[rank] = times
            self.waiting.pop(rank, None)
            if times >= _LOOKS:
                self.waiting[rank] = look.place

    def holds(self, busy: tuple[int, ...]) -> bool:
        """Whether all of these ranks wait."""
        return bool(busy) and all(rank in self.waiting for rank in busy)
