"""Points of a loss on their way from the training loop to whoever reads them, in bounded memory."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

V = TypeVar("V")


class Pending(Generic[V]):
    """The points of one series that have not been read yet.

    One thread adds, another takes. Where more than ``limit`` points wait, every second one is
    dropped and from then on only every second one is kept (then every fourth, ...), until the next
    `take`; the first and the latest are never lost. `add` needs no lock; `take`, `waiting` and
    `thin` must exclude each other.

    Attributes
    ----------
    count
        How many points were ever added.
    """

    __slots__ = ("_latest", "_points", "_stride", "_taken", "count", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self._points: deque[tuple[int, V]] = deque()
        self._stride = 1
        self._latest: tuple[int, V] | None = None  # added, but not kept
        self._taken: tuple[int, V] | None = None

    def add(self, step: int, value: V) -> bool:
        """Add a point; return whether it is time to `thin`."""
        place = self.count
        self.count = place + 1
        if place % self._stride:
            self._latest = (step, value)
            return False
        self._latest = None
        self._points.append((step, value))
        return len(self._points) > self.limit

    def thin(self) -> None:
        """Keep every second of the points that wait."""
        waiting = len(self._points)
        for _ in range(waiting // 2):
            self._points.append(self._points.popleft())
            self._latest = self._points.popleft()
        if waiting % 2:
            self._points.rotate(-1)
            self._latest = None
        self._stride *= 2

    def waiting(self) -> list[tuple[int, V]]:
        """Return what waits, and the latest point."""
        return [*self._points, *([self._latest] if self._latest is not None else [])]

    def take(self) -> list[tuple[int, V]]:
        """Remove and return what waits, in the order in which it was added."""
        points = [self._points.popleft() for _ in range(len(self._points))]
        latest = self._latest
        if latest is not None and latest is not self._taken:
            points.append(latest)
            self._taken = latest
        self._stride = 1
        return points
