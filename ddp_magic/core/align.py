"""Find the lines that one rank printed and another did not, while both still print."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import repeat

_PATIENCE_S = 1.0  # how long a line waits for the lead rank to print it too
_SETTLE_S = 0.3  # the same once the lead has got that far: longer than an engine's flush interval
_WINDOW = 500  # how many lines apart two equal lines may stand
_MOST_LINES = 50_000  # kept of one rank and stream, to compare
_MOST_CHARS = 4_000_000


class LeadLog:
    """The lead rank's latest lines, numbered from the first it printed."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._times_s: list[float] = []
        self._chars = 0
        self._where: dict[str, list[int]] = {}
        self._indexed = 0
        self.start = 0
        self.end = 0

    def extend(self, lines: Sequence[str], now_s: float) -> None:
        self._lines.extend(lines)
        self.end += len(lines)
        self._times_s.extend(repeat(now_s, len(lines)))
        self._chars += sum(map(len, lines))
        if len(self._lines) > _MOST_LINES or self._chars > _MOST_CHARS:
            self._forget()

    def line(self, number: int) -> str:
        return self._lines[number - self.start]

    def time_s(self, number: int) -> float | None:
        """When the line came; None if it has not."""
        return self._times_s[number - self.start] if number < self.end else None

    def find(self, line: str, first: int, last: int) -> int | None:
        """Return the number of the first such line from ``first`` to before ``last``."""
        if self._indexed < self.end:
            self._index()
        numbers = self._where.get(line)
        if numbers is None:
            return None
        at = bisect_left(numbers, first)
        return numbers[at] if at < len(numbers) and numbers[at] < last else None

    def _index(self) -> None:
        for number in range(self._indexed, self.end):
            self._where.setdefault(self.line(number), []).append(number)
        self._indexed = self.end

    def _forget(self) -> None:
        count = 0
        while len(self._lines) - count > _MOST_LINES // 2 or self._chars > _MOST_CHARS // 2:
            self._chars -= len(self._lines[count])
            count += 1
        del self._lines[:count], self._times_s[:count]
        self.start += count
        self._where.clear()
        self._indexed = self.start


class Follower:
    """Another rank's lines, waiting to be found equal to the lead rank's or not.

    Line k is compared with line k first. What the lead printed and this rank did not is
    passed over, and remembered for a while: one extra line on either side shifts the
    comparison and no more.
    """

    def __init__(self, rank: int, log: LeadLog) -> None:
        self.rank = rank
        self._log = log
        self._waiting: deque[tuple[str, float]] = deque()
        self._chars = 0
        self._next = 0  # number of the lead's line to compare with
        self._matched_s = -_PATIENCE_S
        self._passed: dict[str, int] = {}
        self._passed_before: dict[str, int] = {}

    @property
    def head(self) -> str | None:
        """The first line that is not yet known to be equal."""
        return self._waiting[0][0] if self._waiting else None

    @property
    def arrival_s(self) -> float:
        return self._waiting[0][1]

    @property
    def overfull(self) -> bool:
        return len(self._waiting) > _MOST_LINES or self._chars > _MOST_CHARS

    def extend(self, lines: Sequence[str], now_s: float) -> None:
        self._waiting.extend(zip(lines, repeat(now_s)))
        self._chars += sum(map(len, lines))

    def drop_equal(self, now_s: float) -> None:
        """Drop the first lines as far as the lead printed them too."""
        self._next = max(self._next, self._log.start)
        while self._waiting and self._match(self._waiting[0][0]):
            self._pop()
            self._matched_s = now_s

    def is_due(self, now_s: float) -> bool:
        """Tell whether the first line has waited long enough to be called different."""
        if not self._waiting:
            return False
        arrival_s = self.arrival_s
        if self.overfull or now_s >= max(arrival_s, self._matched_s) + _PATIENCE_S:
            return True
        reached_s = self._log.time_s(self._next)
        return reached_s is not None and now_s >= max(arrival_s, reached_s) + _SETTLE_S

    def pop_different(self, now_s: float) -> None:
        """Drop the first line as one that stands in place of the lead's, and equal ones after."""
        self._pop()
        if self._next < self._log.end:
            self._pass_over(self._next + 1)
        self.drop_equal(now_s)

    def _pop(self) -> None:
        line, _ = self._waiting.popleft()
        self._chars -= len(line)

    def _match(self, line: str) -> bool:
        log, number = self._log, self._next
        if number < log.end and log.line(number) == line:
            self._next = number + 1
            return True
        if self._take_passed(line):
            return True
        ahead = log.find(line, number, number + _WINDOW)
        if ahead is None:
            return False
        self._pass_over(ahead)
        self._next = ahead + 1
        return True

    def _pass_over(self, end: int) -> None:
        for number in range(self._next, end):
            line = self._log.line(number)
            self._passed[line] = self._passed.get(line, 0) + 1
            if len(self._passed) >= _WINDOW:
                self._passed_before, self._passed = self._passed, {}
        self._next = end

    def _take_passed(self, line: str) -> bool:
        for passed in (self._passed, self._passed_before):
            if left := passed.get(line, 0):
                if left > 1:
                    passed[line] = left - 1
                else:
                    del passed[line]
                return True
        return False
