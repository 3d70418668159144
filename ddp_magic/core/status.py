"""A session's state as values, and as the table that people read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_LONGEST_ERROR = 80
COLUMNS = ("rank", "pid", "host", "device", "state", "memory", "last error")


@dataclass(frozen=True)
class RankStatus:
    """One rank as the notebook knows it, without asking the rank."""

    rank: int
    pid: int
    host: str
    device: str
    state: str
    rss_bytes: int | None = None
    last_error: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return the row's texts, in the order of `COLUMNS`."""
        memory = "" if self.rss_bytes is None else f"{self.rss_bytes / 2**20:,.0f} MiB"
        rank, pid = str(self.rank), str(self.pid)
        error = self.last_error
        if len(error) > _LONGEST_ERROR:
            error = error[: _LONGEST_ERROR - 3] + "..."
        return (rank, pid, self.host, self.device, self.state, memory, error)


@dataclass(frozen=True)
class SessionStatus:
    """The session's state in words and a row for each rank."""

    state: str
    backend: str = ""
    seed: int | None = None
    ranks: tuple[RankStatus, ...] = ()

    @property
    def headline(self) -> str:
        """Return one line on the session as a whole."""
        if not self.ranks:
            return self.state
        ranks = "1 rank" if len(self.ranks) == 1 else f"{len(self.ranks)} ranks"
        return f"{self.state}: {ranks}, {self.backend}, seed {self.seed}"

    def __str__(self) -> str:
        return "\n".join([self.headline, *self._table()])

    __repr__ = __str__

    def _table(self) -> Iterator[str]:
        if not self.ranks:
            return
        rows = [COLUMNS, *(rank.cells() for rank in self.ranks)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
        for row in rows:
            yield "  ".join(
                text.ljust(width) for text, width in zip(row, widths, strict=True)
            ).rstrip()
