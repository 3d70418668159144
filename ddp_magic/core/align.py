"""Find the lines that one rank printed and another did not, while both still print."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence

_PATIENCE_S = 1.0  # how long a line waits for the lead rank to print it too
_SETTLE_S = 0.3  # the same once the lead has got that far: longer than an engine's flush interval
_WINDOW = 500  # how many lines apart two equal lines may stand
_MOST_LINES = 50_000  # kept of one rank and stream, to compare
_MOST_CHARS = 4_000_000
_LONGEST_RUN = 8192  # lines that are compared at once
_DROPPED = 10_000  # lines that may be dropped before their memory is freed


class Lines:
    """Lines in the order in which they came, numbered from the first.

    Attributes
    ----------
    start, end
        The numbers of the first line that is kept, and of the next that comes.
    chars
        How long the lines are that are kept.
    """

    def __init__(self) -> None:
        self.start = self.end = self.chars = 0
        self._lines: list[str] = []
        self._offset = 0  # number of the first in memory
        self._ends: list[int] = []  # of each batch: the number after its last line, and its time
        self._times_s: list[float] = []

    def __len__(self) -> int:
        return self.end - self.start

    def extend(self, lines: Sequence[str], now_s: float) -> None:
        if lines:
            self._lines.extend(lines)
            self.end += len(lines)
            self.chars += sum(map(len, lines))
            self._ends.append(self.end)
            self._times_s.append(now_s)

    def slice(self, first: int, last: int) -> list[str]:
        return self._lines[first - self._offset : last - self._offset]

    def line(self, number: int) -> str:
        return self._lines[number - self._offset]

    def time_s(self, number: int) -> float | None:
        """When the line came; None if it has not."""
        return self._times_s[bisect_right(self._ends, number)] if number < self.end else None

    def batch_end(self, number: int) -> int:
        """The number after the last line that came together with this one."""
        return self._ends[bisect_right(self._ends, number)]

    def drop(self, count: int) -> None:
        """Forget the first lines."""
        self.chars -= sum(map(len, self.slice(self.start, self.start + count)))
        self.start += count
        if self.start - self._offset > _DROPPED:
            del self._lines[: self.start - self._offset]
            self._offset = self.start
            gone = bisect_right(self._ends, self.start)
            del self._ends[:gone], self._times_s[:gone]


class LeadLog(Lines):
    """The lead rank's latest lines."""

    def __init__(self) -> None:
        super().__init__()
        self._where: dict[str, list[int]] = {}
        self._indexed = 0

    def extend(self, lines: Sequence[str], now_s: float) -> None:
        super().extend(lines, now_s)
        if len(self) > _MOST_LINES or self.chars > _MOST_CHARS:
            self._forget()

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
        while len(self) > _MOST_LINES // 2 or self.chars > _MOST_CHARS // 2:
            self.drop(1)
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
        self._waiting = Lines()
        self._next = 0  # number of the lead's line to compare with
        self._matched_s = -_PATIENCE_S
        self._passed: Counter[str] = Counter()
        self._passed_before: Counter[str] = Counter()
        self._run = 1  # how many lines to compare at once, as the last comparison suggests

    @property
    def head(self) -> str | None:
        """The first line that is not yet known to be equal."""
        waiting = self._waiting
        return waiting.line(waiting.start) if waiting else None

    @property
    def arrival_s(self) -> float:
        return self._waiting.time_s(self._waiting.start) or 0.0

    @property
    def overfull(self) -> bool:
        return len(self._waiting) > _MOST_LINES or self._waiting.chars > _MOST_CHARS

    @property
    def batch_length(self) -> int:
        """How many of the first lines came together."""
        return self._waiting.batch_end(self._waiting.start) - self._waiting.start

    def heads(self, count: int) -> list[str]:
        """Return the first lines."""
        return self._waiting.slice(self._waiting.start, self._waiting.start + count)

    def extend(self, lines: Sequence[str], now_s: float) -> None:
        self._waiting.extend(lines, now_s)

    def drop_equal(self, now_s: float) -> None:
        """Drop the first lines as far as the lead printed them too."""
        self._next = max(self._next, self._log.start)
        while self._waiting:
            count = self._equal_run() or int(self._match(self.heads(1)[0]))
            if not count:
                return
            self._waiting.drop(count)
            self._matched_s = now_s

    def is_due(self, now_s: float, count: int = 1) -> bool:
        """Tell whether the first lines have waited long enough to be called different."""
        if not self._waiting:
            return False
        arrival_s = self.arrival_s
        if now_s >= max(arrival_s, self._matched_s) + _PATIENCE_S or (self.overfull and count == 1):
            return True
        reached_s = self._log.time_s(self._next + count - 1)
        return reached_s is not None and now_s >= max(arrival_s, reached_s) + _SETTLE_S

    def is_unlike(self, lines: Sequence[str]) -> bool:
        """Tell whether the lead has none of these lines where they would be looked for."""
        distinct = set(lines)
        near = self._log.slice(self._next, self._next + len(lines) + _WINDOW)
        return all(map(distinct.isdisjoint, (near, self._passed, self._passed_before)))

    def pop_different(self, now_s: float, count: int = 1) -> None:
        """Drop the first lines as ones that stand in place of the lead's, and equal ones after."""
        self._waiting.drop(count)
        self._pass_over(max(self._next, min(self._next + count, self._log.end)))
        self.drop_equal(now_s)

    def _equal_run(self) -> int:
        """Pass over lines of the lead that equal the first that wait; return how many."""
        log, waiting = self._log, self._waiting
        while (count := min(self._run, len(waiting), log.end - self._next)) > 0:
            if self.heads(count) == log.slice(self._next, self._next + count):
                self._run = min(2 * self._run, _LONGEST_RUN)
                self._next += count
                return count
            self._run = 1
            if count == 1:
                break
        return 0

    def _match(self, line: str) -> bool:
        if self._take_passed(line):
            return True
        ahead = self._log.find(line, self._next, self._next + _WINDOW)
        if ahead is None:
            return False
        self._pass_over(ahead)
        self._next = ahead + 1
        return True

    def _pass_over(self, end: int) -> None:
        for first in range(self._next, end, _WINDOW):
            self._passed.update(self._log.slice(first, min(first + _WINDOW, end)))
            if len(self._passed) >= _WINDOW:
                self._passed_before, self._passed = self._passed, Counter()
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
