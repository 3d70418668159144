"""Which part of a batch is whose: the arithmetic of sharded loaders.

Ranks average their gradients, each a mean over the rank's own part. That average is the mean
over the batch exactly if every sample is held equally often. So a batch of ``size`` samples is
cut into ``gcd(size, world_size)`` equal parts, and where these are fewer than the ranks, several
ranks hold the same part. A last batch of 5 on 2 ranks is held whole by both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """One rank among ``world_size``.

    Attributes
    ----------
    least
        How many samples a part must have, if the batch has as many: BatchNorm needs two.
    """

    rank: int
    world_size: int
    least: int = 1

    def parts(self, size: int) -> int:
        """Return into how many different parts a batch of ``size`` samples is cut."""
        most = math.gcd(size, self.world_size)
        if size >= self.least * most:
            return most
        fitting = (n for n in range(1, most) if most % n == 0 and size >= self.least * n)
        return max(fitting, default=1)

    def exact(self, size: int) -> slice:
        """Return this rank's part of ``size`` samples: means of parts average to the mean."""
        parts = self.parts(size)
        part_size = size // parts
        start = self.rank % parts * part_size
        return slice(start, start + part_size)

    def padded(self, size: int) -> list[int]:
        """Return this rank's ``ceil(size / world_size)`` positions; the first repeat at the end."""
        part_size = math.ceil(size / self.world_size)
        start = self.rank * part_size
        return [position % size for position in range(start, start + part_size)]

    def deal(self, items: Iterable[T]) -> Iterator[T]:
        """Yield every ``world_size``-th item, equally many on all ranks: a short round repeats."""
        source = iter(items)
        while hand := list(islice(source, self.world_size)):
            yield hand[self.rank % len(hand)]
