"""Which ranks wait for something that cannot come, given what each of them is seen to do.

A rank waits in vain for another that has ended the cell, and for one that waits in vain itself. So
of all ranks that wait, those are let off, one after the other, whose collective every rank that
still moves may yet join; what is left then will never go on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddp_magic.core.where import Place

_ANY = "wait"  # the call that waits for some collective begun before: which is not known
# Collectives to which every rank gives as much.
_ALIKE = ("all_reduce", "allreduce", "broadcast", "all_gather", "allgather", "reduce")


@dataclass(frozen=True)
class Op:
    """A collective that has begun on a rank, and has not ended.

    Attributes
    ----------
    group
        The name of the process group.
    number
        The how manieth of the group it is.
    members
        The ranks of the group.
    name
        As the backend calls it.
    sizes, dtypes
        Of its tensors.
    """

    group: str
    number: int
    members: tuple[int, ...]
    name: str
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Op:
        """Read what a rank has sent."""
        sizes = tuple(tuple(size) for size in wire["sizes"])
        rest = {key: tuple(wire[key]) for key in ("members", "dtypes")}
        return cls(**{**wire, **rest, "sizes": sizes})

    def clashes_with(self, other: Op) -> bool:
        """Whether both are the same number of one group, and cannot be one collective."""
        if (self.group, self.number) != (other.group, other.number):
            return False
        if self.name != other.name:
            return True
        return self.name in _ALIKE and (self.sizes, self.dtypes) != (other.sizes, other.dtypes)

    def __str__(self) -> str:
        shapes = [
            f"{list(size)} {dtype.lower()}"
            for size, dtype in zip(self.sizes, self.dtypes, strict=False)
        ]
        of = f" of {', '.join(shapes)}" if shapes else ""
        return f"{self.name} #{self.number}{of}"


@dataclass(frozen=True)
class Look:
    """What is seen of a rank at one moment.

    Attributes
    ----------
    place
        Where it is.
    counts
        How many collectives each of its process groups has begun.
    ops
        Those that have not ended, the oldest first; empty also where they are not known.
    awaits
        The ranks that it waits for outside a collective: before one, until all have come.
    has_threads
        Whether other threads run code of the user's, which may do what the ranks wait for.
    cpu_s
        The processor time that it has used, or waited for.
    at_s
        When.
    """

    place: Place
    counts: Mapping[str, int] = field(default_factory=dict)
    ops: tuple[Op, ...] = ()
    awaits: tuple[int, ...] = ()
    has_threads: bool = False
    cpu_s: float = 0.0
    at_s: float = 0.0

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Look:
        """Read what a rank has answered."""
        read = {
            "place": Place.from_wire(wire["place"]),
            "ops": tuple(map(Op.from_wire, wire["ops"])),
            "awaits": tuple(wire["awaits"]),
        }
        return cls(**{**wire, **read})

    @property
    def waits(self) -> bool:
        """Whether it may be waiting for other ranks."""
        return (self.place.waits or bool(self.awaits)) and not self.has_threads

    @property
    def where(self) -> str:
        """``all_reduce #17 of [4] float (line 3)``, of a rank that waits."""
        if self.ops and not self.awaits:
            return f"{self._call}{self.ops[-1]} ({self.place.line_text})"
        return self.place.where

    @property
    def _call(self) -> str:
        if self.place.in_backward:
            return "backward(), "
        return "wait(), " if self.place.collective == _ANY else ""

    def is_like(self, before: Look) -> bool:
        """Whether nothing has happened since."""
        mine, its = ((one.place, dict(one.counts), one.ops, one.awaits) for one in (self, before))
        return mine == its


def in_vain(
    looks: Mapping[int, Look], ended: Mapping[int, Mapping[str, int]], dead: Collection[int] = ()
) -> set[int]:
    """Return the ranks that wait for what cannot come.

    Parameters
    ----------
    looks
        At each rank in which nothing happens, all at one moment.
    ended
        How many collectives each rank that has ended the cell has begun, by group.
    dead
        Ranks whose process has ended.
    """
    ended = {**ended, **{rank: {} for rank in dead}}
    # What not all have begun, and some will not, cannot end, wherever the rank asks after it.
    doomed = {rank for rank, look in looks.items() if not look.has_threads and _lacks(look, ended)}
    stuck = {rank for rank, look in looks.items() if look.waits} - doomed
    while movable := {r for r in stuck if not _is_blocked(r, looks, stuck | doomed, ended)}:
        stuck -= movable
    return stuck | doomed


def _lacks(look: Look, ended: Mapping[int, Mapping[str, int]]) -> bool:
    """Whether all that a rank has begun lacks a rank that has ended the cell without it."""
    return bool(look.ops) and all(
        any(ended[rank].get(op.group, 0) < op.number for rank in op.members if rank in ended)
        for op in look.ops
    )


def clash(looks: Mapping[int, Look]) -> str:
    """Return how the ranks' present collectives do not match, or ``""``."""
    latest = {rank: look.ops[-1] for rank, look in sorted(looks.items()) if look.ops}
    for rank, op in latest.items():
        for other, its in latest.items():
            if op.clashes_with(its):
                return f"rank {rank} is in {op}, rank {other} in {its}: they do not match"
    return ""


def _is_blocked(
    rank: int,
    looks: Mapping[int, Look],
    stuck: Collection[int],
    ended: Mapping[int, Mapping[str, int]],
) -> bool:
    look = looks[rank]
    if look.awaits:  # of those that have ended the cell it takes note by itself
        return any(other in stuck for other in look.awaits)

    def is_dead(op: Op) -> bool:
        for other in op.members:
            if other == rank:
                continue
            counts = looks[other].counts if other in stuck else ended.get(other)
            if counts is not None and counts.get(op.group, 0) < op.number:
                return True
            if other in stuck and any(op.clashes_with(its) for its in looks[other].ops):
                return True
        return False

    if not look.ops:
        return False
    if look.place.in_backward:
        return any(map(is_dead, look.ops))
    if look.place.collective == _ANY:
        return all(map(is_dead, look.ops))
    return is_dead(look.ops[-1])
