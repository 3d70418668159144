"""How a cell failed, rank by rank, and how that is told: one traceback, a line for the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ddp_magic.core.ranks import named, told_of_each
from ddp_magic.core.where import Place

# What a process group says when a rank has gone; the words are gloo's and NCCL's.
_BROKEN_GROUP = re.compile(r"gloo|NCCL|Connection (closed|reset) by peer|DistBackendError")
_LONGEST_HEADLINE = 160
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
        if self.name == other.name == "CollectiveError" and self.message == other.message:
            return True  # each rank raises it where it is
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
        Where each rank waited for others in vain.
    places
        Where each rank that had to be interrupted was: ``"is at line 3"``.
    clash
        How ranks' calls of collectives did not match; or ``""``.
    """

    failures: Mapping[int, RankFailure]
    finished: tuple[int, ...]
    died: Mapping[int, str]
    busy: tuple[int, ...] = ()
    freed: Mapping[int, str] = field(default_factory=dict)
    places: Mapping[int, str] = field(default_factory=dict)
    clash: str = ""

    @property
    def first(self) -> RankFailure | None:
        """The failure that came first; that of a rank made to end only if no other did."""
        return min(
            self.failures.values(),
            key=lambda one: (one.rank in self.freed, self.was_ended(one), one.at_s, one.rank),
            default=None,
        )

    def was_ended(self, failure: RankFailure) -> bool:
        """Whether a failure is only how a rank was made to end."""
        place = self.places.get(failure.rank, "")
        if failure.name == "KeyboardInterrupt":
            return bool(place)
        return place not in ("", str(Place(0))) and _is_of_broken_group(failure)

    def follows_a_death(self, failure: RankFailure) -> bool:
        """Whether a failure is only what became of a rank when another had died."""
        if not self.died:
            return False
        return failure.name == "KeyboardInterrupt" or _is_of_broken_group(failure)

    def summary(self) -> str:
        """Return one line: what failed and where."""
        first = self.first
        if self.died:
            return "; ".join(self._deaths())
        if first is None or first.rank in self.freed:
            return "; ".join([*([self.clash] if self.clash else []), *self._waits()])
        return f"{first.headline} ({self._where(first)})"

    def lines(self) -> list[str]:
        """Return one line for each group of ranks, the first failure's group first."""
        told = [*self._deaths(), *([self.clash] if self.clash else [])]
        ended = [
            rank
            for rank, one in self.failures.items()
            if self.was_ended(one) and rank not in self.freed
        ]
        after = [
            rank
            for rank, one in self.failures.items()
            if self.follows_a_death(one) and rank not in (*ended, *self.freed)
        ]
        if after:
            told.append(
                f"{named(sorted(after))} {'was' if len(after) == 1 else 'were'} stopped then"
            )
        first = self.first
        if first is not None and self.is_told(first):
            told.append(f"{self._where(first)} {_ending(first.headline)}")
            told += [
                f"{named(ranks)} {_ending(headline)}"
                for headline, ranks in self._others(first).items()
            ]
        told += self._waits()
        told += told_of_each({rank: _interrupted(self.places[rank]) for rank in sorted(ended)})
        if finished := [rank for rank in self.finished if rank not in self.freed]:
            told.append(f"{named(finished)} finished")
        if self.busy:
            told += told_of_each({rank: self._busy_place(rank) for rank in self.busy})
            told.append("`%ddp interrupt` kills what does not end")
        return told

    def _busy_place(self, rank: int) -> str:
        return f"{self.places.get(rank, 'is in the cell')} still"

    def is_told(self, failure: RankFailure) -> bool:
        """Whether a failure is told as such, and not as what another one led to."""
        return not (
            failure.rank in self.freed or self.follows_a_death(failure) or self.was_ended(failure)
        )

    def _waits(self) -> list[str]:
        groups: dict[str, list[int]] = {}
        for rank, where in sorted(self.freed.items()):
            groups.setdefault(where, []).append(rank)
        others = sorted(
            {*self.finished, *self.failures.keys()} - self.freed.keys() - self.places.keys()
        )
        left = f"; {named(others)} had ended the cell" if others else ""
        return [
            f"{named(ranks)} waited in {where} in vain{left}" for where, ranks in groups.items()
        ]

    def _deaths(self) -> list[str]:
        return told_of_each(dict(sorted(self.died.items())))

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
            if self.is_told(failure) and not failure.same_as(first):
                groups.setdefault(failure.headline, []).append(rank)
        return groups


def _is_of_broken_group(failure: RankFailure) -> bool:
    return _BROKEN_GROUP.search(f"{failure.name}: {failure.message}") is not None


def _interrupted(place: str) -> str:
    """Return ``was interrupted at line 3`` of ``is at line 3``."""
    verb, _, rest = place.partition(" ")
    where = rest if rest.startswith(("at ", "in ")) else f"as it was {rest}"
    return f"was interrupted {where}" if verb in ("is", "waits") else place


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
    if headline == "KeyboardInterrupt":
        return "stopped here"
    if len(headline) > _LONGEST_HEADLINE:  # its traceback stands above
        headline = headline[: _LONGEST_HEADLINE - 3] + "..."
    return f"failed with {headline}"
