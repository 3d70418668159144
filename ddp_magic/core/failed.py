"""Which cell failed last, and on which ranks: what `%ddp debug` can look into."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from ddp_magic.core.ranks import named
from ddp_magic.errors import StateError, UsageError


@dataclass(frozen=True)
class Failed:
    """A cell that has failed.

    Attributes
    ----------
    number
        Which of the session's cells it is.
    name
        As it is told of: ``In[3]``.
    ranks
        Those that keep the frames in which it failed, ascending.
    first
        The one that failed first.
    """

    number: int
    name: str
    ranks: tuple[int, ...]
    first: int

    def without(self, gone: Collection[int]) -> Failed:
        """Return what is left without ranks that have ended."""
        return replace(self, ranks=tuple(rank for rank in self.ranks if rank not in gone))

    def check(self, rank: int | None) -> None:
        """Raise unless this rank's frames, or by default any rank's, can be looked into."""
        if not self.ranks:
            raise StateError(f"The ranks on which {self.name} failed have ended.")
        if rank is not None and rank not in self.ranks:
            raise UsageError(
                f"%ddp debug {rank}: it is not there that {self.name} failed, but on"
                f" {named(self.ranks)}"
            )

    def beginning_with(self, rank: int | None) -> Failed:
        """Return this, another rank being the first to be looked into."""
        first = self.first if rank is None else rank
        return replace(self, first=first if first in self.ranks else self.ranks[0])
