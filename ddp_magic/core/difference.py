"""What a comparison of one value on several ranks has found, and how that is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ddp_magic.core.parts import Path, of_groups, shown
from ddp_magic.core.ranks import named

_SHOWN = 8  # parts that are listed

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Distance:
    """How far numbers of several ranks are apart.

    Attributes
    ----------
    largest
        The largest difference between two ranks.
    relative
        The largest such difference in relation to the larger of the two numbers.
    differing
        How many elements differ in their bits.
    seen, count
        How many elements were compared so, and how many there are in what differs.
    """

    largest: float
    relative: float
    differing: int
    seen: int
    count: int

    @property
    def is_sampled(self) -> bool:
        """Whether not all were compared."""
        return self.seen < self.count

    def __str__(self) -> str:
        if self.count == 1 and self.largest:
            return f"by {self.largest:.3g} (relative {self.relative:.3g})"
        if not self.largest:
            return f"largest difference 0: other bits (such as -0.0) in {self._elements()}"
        about = "at least " if self.is_sampled else ""
        return (
            f"largest difference {about}{self.largest:.3g} (relative {about}{self.relative:.3g}),"
            f" in {self._elements()}"
        )

    def _elements(self) -> str:
        if self.is_sampled:
            return f"{self.differing:,} of {self.seen:,} elements looked at, of {self.count:,}"
        return f"{self.differing:,} of {self.count:,} element{'s' if self.count > 1 else ''}"


@dataclass(frozen=True)
class PartDifference:
    """One part that is not the same on all ranks.

    Attributes
    ----------
    path
        Where it is.
    how
        What differs first of: presence, class, length, shape, dtype, value.
    groups
        The ranks that are alike in it.
    distance
        How far its numbers are apart, if it has any that can be compared.
    """

    path: Path
    how: str
    groups: Groups
    distance: Distance | None = None

    @property
    def name(self) -> str:
        """Its name within the whole: ``layers.0.weight``; ``""`` of the whole itself."""
        return shown(self.path)

    def told(self) -> str:
        """Return how it differs."""
        return f"{self.how}: {self.distance}" if self.distance else self.how


@dataclass(frozen=True)
class Difference:
    """What a comparison of one variable on several ranks has found; true if all are equal.

    Attributes
    ----------
    name
        The variable.
    ranks
        Those that were compared.
    groups
        The ranks that have the same bits, by the first rank of each group.
    parts
        What differs: numbers, texts, tensors, or what holds them.
    compared
        How many parts there are, those included that hold others.
    what
        What it is, in a few words.
    missing
        Why other ranks were not compared.
    unseen
        What was not looked into, by path.
    is_whole
        Whether all of it was looked at.
    is_running
        Whether a cell was running, which may have changed it meanwhile.
    """

    name: str
    ranks: tuple[int, ...]
    groups: Groups
    parts: tuple[PartDifference, ...] = ()
    compared: int = 0
    what: str = ""
    missing: Mapping[int, str] = field(default_factory=dict)
    unseen: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = True
    is_running: bool = False

    @property
    def equal(self) -> bool:
        """Whether it was found to be the same, down to the last bit, on all ranks asked."""
        return len(self.groups) == 1 and not self.missing and self.is_whole

    def __bool__(self) -> bool:
        return self.equal

    @property
    def largest(self) -> float:
        """The largest difference of numbers that was found."""
        return max((one.distance.largest for one in self.parts if one.distance), default=0.0)

    @property
    def headline(self) -> str:
        """One line: whether it is the same, and on which ranks."""
        if not self.groups:
            return f"{self.name} was compared on no rank"
        if len(self.groups) > 1:
            return f"{self.name} differs: {of_groups(list(self.groups))}"
        if len(self.ranks) == 1:
            return f"{self.name} is on {named(self.ranks)} alone: there is nothing to compare"
        found = "bit-identical" if self.is_whole else "alike as far as it was looked at"
        return f"{self.name} is {found} on {named(self.ranks)} ({self.what})"

    def notes(self) -> list[str]:
        """Return what was not compared, and what else is to be known."""
        hidden = len(self.parts) - _SHOWN
        told = []
        if hidden > 0:
            largest = f"largest difference found {self.largest:.3g}"
            told.append(f"and {hidden:,} more parts that differ; {largest}")
        told += [f"not compared: {why}" for why in self.missing.values()]
        unseen = list(self.unseen.items())
        if unseen:
            some = ", ".join(f"{path or self.name} ({why})" for path, why in unseen[:_SHOWN])
            told.append(f"not looked into: {some}{', …' if len(unseen) > _SHOWN else ''}")
        elif not self.is_whole:
            told.append("too large to be looked into as a whole")
        if self.is_running:
            told.append("a cell is running, which may have changed it between one rank and another")
        return told

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, groups and difference of the first parts that differ."""
        return [
            (one.name or self.name, of_groups(list(one.groups)), one.told())
            for one in self.parts[:_SHOWN]
        ]

    def __str__(self) -> str:
        return "\n".join([self.headline, *self._table(), *self.notes()])

    __repr__ = __str__

    def _table(self) -> Iterator[str]:
        rows = self.rows()
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)] if rows else []
        for name, groups, told in rows:
            yield f"  {name:<{widths[0]}}  {groups:<{widths[1]}}  {told}"
