"""How a cell failed, rank by rank, and how that is told: one traceback, a line for the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ddp_magic.core.ranks import format_ranks

# What a process group says when a rank has gone; the words are gloo's and NCCL's.
_BROKEN_GROUP = re.compile(r"gloo|NCCL|Connection (closed|reset) by peer|DistBackendError")
_PLURAL = {"was": "were", "has": "have"}
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class RankFailure:
    """An exception that ended the cell on one rank.

    Attributes
    ----------
    name, message
        The exception's class name and text.
    traceback
        The lines as IPython formatted them on the rank.
    at_s
        When it was raised, in seconds since the epoch by the rank's clock.
    """

    rank: int
    name: str
    message: str
    traceback: tuple[str, ...]
    at_s: float

    @property
    def headline(self) -> str:
        """``ValueError: the first line of its message``."""
        first_line = self.message.partition("\n")[0]
        return f"{self.name}: {first_line}" if first_line else self.name

    @property
    def missing_name(self) -> str:
        """The name that was not defined, if that is the failure; else ``""``."""
        match = re.match(r"name '(\w+)' is not defined", self.message)
        return match[1] if match and self.name == "NameError" else ""

    def same_as(self, other: RankFailure) -> bool:
        """Whether both are one failure on two ranks."""
        mine, its = (_ANSI.sub("", "\n".join(one.traceback)) for one in (self, other))
        return (self.name, self.message, mine) == (other.name, other.message, its)


@dataclass(frozen=True)
class FailureStory:
    """Everything that happened to the ranks of a failed cell.

    Attributes
    ----------
    failures
        By rank; may be empty if ranks died only.
    finished
        Ranks that came to the end of the cell.
    died
        What is known of each rank whose process ended, by rank.
    busy
        Ranks that are still in the cell.
    freed
        Where each rank waited for others in vain, until it was freed.
    """

    failures: Mapping[int, RankFailure]
    finished: tuple[int, ...]
    died: Mapping[int, str]
    busy: tuple[int, ...] = ()
    freed: Mapping[int, str] = field(default_factory=dict)

    @property
    def first(self) -> RankFailure | None:
        """The failure that came first; of those of ranks that were freed only if no other did."""
        return min(
            self.failures.values(),
            key=lambda one: (one.rank in self.freed, one.at_s, one.rank),
            default=None,
        )

    def follows_a_death(self, failure: RankFailure) -> bool:
        """Whether a failure is only what became of a rank when another had died."""
        if not self.died:
            return False
        stopped = failure.name == "KeyboardInterrupt"
        return stopped or _BROKEN_GROUP.search(f"{failure.name}: {failure.message}") is not None

    def summary(self) -> str:
        """Return one line: what failed and where."""
        first = self.first
        if self.died:
            return "; ".join(self._deaths())
        if first is None or first.rank in self.freed:
            return "; ".join(self._waits())
        return f"{first.headline} ({self._where(first)})"

    def lines(self) -> list[str]:
        """Return one line for each group of ranks, the first failure's group first."""
        told = self._deaths()
        after = [rank for rank, one in self.failures.items() if self.follows_a_death(one)]
        if after:
            told.append(
                f"{named(sorted(after))} {'was' if len(after) == 1 else 'were'} stopped then"
            )
        first = self.first
        told += self._waits()
        if first is not None and not self.follows_a_death(first) and first.rank not in self.freed:
            told.append(f"{self._where(first)} {_ending(first.headline)}")
            told += [
                f"{named(ranks)} {_ending(headline)}"
                for headline, ranks in self._others(first).items()
            ]
        if finished := [rank for rank in self.finished if rank not in self.freed]:
            told.append(f"{named(finished)} finished")
        if self.busy:
            told.append(f"{named(self.busy)} still busy; `%ddp restart` ends what does not stop")
        return told

    def _waits(self) -> list[str]:
        groups: dict[str, list[int]] = {}
        for rank, where in sorted(self.freed.items()):
            groups.setdefault(where, []).append(rank)
        others = sorted({*self.finished, *self.failures.keys()} - self.freed.keys())
        left = f"; {named(others)} had ended the cell" if others else ""
        return [
            f"{named(ranks)} waited in {where} in vain{left}" for where, ranks in groups.items()
        ]

    def _deaths(self) -> list[str]:
        groups: dict[str, list[int]] = {}
        for rank, what in sorted(self.died.items()):
            groups.setdefault(what, []).append(rank)
        return [f"{named(ranks)} {_in_number(what, len(ranks))}" for what, ranks in groups.items()]

    def _where(self, first: RankFailure) -> str:
        same = [rank for rank, one in sorted(self.failures.items()) if one.same_as(first)]
        if len(same) == 1:
            return f"rank {first.rank}"
        if len(same) == len(self.failures) and not self.finished and not self.died:
            return "both ranks" if len(same) == 2 else f"all {len(same)} ranks"
        return f"{named(same)} (rank {first.rank} first)"

    def _others(self, first: RankFailure) -> dict[str, list[int]]:
        groups: dict[str, list[int]] = {}
        for rank, failure in sorted(self.failures.items()):
            if (
                not failure.same_as(first)
                and not self.follows_a_death(failure)
                and rank not in self.freed
            ):
                groups.setdefault(failure.headline, []).append(rank)
        return groups


def way_back(dead: Iterable[int], ranks: Iterable[int]) -> str:
    """Say what brings dead ranks back, given all ranks."""
    dead = set(dead)
    alive = [rank for rank in ranks if rank not in dead]
    if not alive:
        return "`%ddp restart` starts new ones"
    them = "it" if len(dead) == 1 else "them"
    return (
        f"`%ddp heal` brings {them} back with rank {min(alive)}'s variables,"
        " `%ddp restart` starts afresh"
    )


def _ending(headline: str) -> str:
    return "stopped here" if headline == "KeyboardInterrupt" else f"failed with {headline}"


def _in_number(what: str, count: int) -> str:
    """Return what one rank did as what several did: ``was killed`` becomes ``were killed``."""
    verb, _, rest = what.partition(" ")
    return f"{_PLURAL.get(verb, verb) if count > 1 else verb} {rest}"


def named(ranks: Iterable[int]) -> str:
    """Return ``rank 0`` or ``ranks 0, 2-3``."""
    ranks = tuple(ranks)
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"
