"""Do all ranks of a cell stand still, waiting for what is not known?

What a rank waits for is mostly known (`ddp_magic.core.deadlock`). Where it is not, as in a receive
from another rank, it is only seen, by looking again and again, that every rank waits and none
computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ddp_magic.core.deadlock import Look

_IDLE_SHARE = 0.1  # of a processor, at most, is used by what waits
_BETWEEN_S = 0.2  # the least time between two looks
_LOOKS = 3  # at which a rank must be seen to wait, one after the other
_MORE_LOOKS = 12  # the same, where it is known for what, and that might yet come


@dataclass
class Standstill:
    """Finds out that ranks wait in vain, for what is not known.

    Attributes
    ----------
    waiting
        The last look at each rank that waits.
    """

    waiting: dict[int, Look] = field(default_factory=dict)
    _times: dict[int, int] = field(default_factory=dict)
    _first: dict[int, Look] = field(default_factory=dict)

    def see(self, rank: int, look: Look) -> None:
        """Take a look at one rank into account."""
        before = self._first.get(rank)
        if before is None:
            self._first[rank] = look
        elif look.at_s - before.at_s >= _BETWEEN_S:
            self._first[rank] = look
            times = self._times.get(rank, 0) + 1 if _has_waited(look, before) else 0
            self._times[rank] = times
            self.waiting.pop(rank, None)
            if times >= _LOOKS:
                self.waiting[rank] = look

    def holds(self, busy: tuple[int, ...]) -> bool:
        """Whether all of these ranks have stood still, for long enough to be sure."""
        waiting = [self.waiting[rank] for rank in busy if rank in self.waiting]
        known = all(look.ops or look.awaits for look in waiting)
        least = min((self._times[rank] for rank in busy if rank in self.waiting), default=0)
        return bool(busy) and len(waiting) == len(busy) and (not known or least >= _MORE_LOOKS)


def _has_waited(look: Look, before: Look) -> bool:
    """Whether a rank has done nothing since then but wait for other ranks."""
    if not look.waits or not look.is_like(before):
        return False
    # What it waits for outside a collective it asks after, again and again.
    passed_s = look.at_s - before.at_s
    # Less than before: a thread has ended, which is work as well.
    return bool(look.awaits) or 0 <= look.cpu_s - before.cpu_s < _IDLE_SHARE * passed_s
