"""Where ranks are, frame by frame: grouped, and as the text that people read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddp_magic.core.deadlock import Look, clash
from ddp_magic.core.ranks import in_number, named

_READY = "is ready"


@dataclass(frozen=True)
class Frame:
    """One call on a stack.

    Attributes
    ----------
    file
        ``In[7]`` of a notebook's cell, else a path.
    line
        Its number there, in a cell that of the whole cell.
    function
        ``""`` outside any.
    source
        The line's text; ``""`` if it is not known.
    is_users
        Whether it is code of the user's, and not of a library.
    """

    file: str
    line: int
    function: str = ""
    source: str = ""
    is_users: bool = True

    def __str__(self) -> str:
        file = self.file.rpartition("/")[2] if self.is_users else self.file
        within = f", in {self.function}" if self.function else ""
        source = f": {self.source}" if self.source else ""
        return f"{file} line {self.line}{within}{source}"


@dataclass(frozen=True)
class RankStack:
    """What one rank does, and where.

    Attributes
    ----------
    doing
        As what follows "rank 3": ``waits in all_reduce #17 of [4] float (line 12)``.
    runs
        Whether it runs a cell.
    frames
        Of the main thread, the innermost first, as far out as the user's code goes.
    left_out
        How many frames there are in the middle of these that are not among them.
    threads
        Name and innermost frame of the user's of each other thread that runs code of the user's.
    """

    doing: str
    runs: bool = False
    frames: tuple[Frame, ...] = ()
    left_out: int = 0
    threads: tuple[tuple[str, Frame], ...] = ()

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any], *, busy: bool) -> RankStack:
        """Read what a rank has answered; ``busy``: it runs a cell."""
        threads = tuple((name, Frame(**frame)) for name, frame in wire["threads"])
        if not busy:
            return cls(_READY, threads=threads)
        frames = tuple(Frame(**frame) for frame in wire["frames"])
        look = Look.from_wire(wire["look"])
        return cls(_doing(look), True, frames, wire["left_out"], threads)

    @property
    def users(self) -> tuple[Frame, ...]:
        """Frames of the user's code, the innermost first."""
        return tuple(frame for frame in self.frames if frame.is_users)

    @property
    def libraries(self) -> int:
        """How many of the frames run other code."""
        return len(self.frames) - len(self.users)

    def lines(self, *, users_only: bool = False) -> Iterator[str]:
        """Yield a line for each frame."""
        for number, frame in enumerate(self.frames):
            if self.left_out and number == len(self.frames) // 2:
                yield f"… {self.left_out} more"
            if frame.is_users or not users_only:
                yield str(frame)


@dataclass(frozen=True)
class StackGroup:
    """Ranks that do the same at the same lines of the user's code.

    Attributes
    ----------
    stacks
        Their stacks in full, each with the ranks of which it is: libraries may be at different
        places.
    """

    ranks: tuple[int, ...]
    stacks: tuple[tuple[tuple[int, ...], RankStack], ...]

    @property
    def headline(self) -> str:
        """``ranks 0, 2-3 wait in all_reduce #17 of [4] float (line 12)``."""
        return f"{named(self.ranks)} {in_number(self._one.doing, len(self.ranks))}"

    @property
    def users(self) -> tuple[str, ...]:
        """A line for each frame of the user's code, then for each other thread that runs some."""
        threads = (f"thread {name}: {frame}" for name, frame in self._one.threads)
        return (*self._one.lines(users_only=True), *threads)

    @property
    def folded(self) -> str:
        """``23 frames of libraries``, or ``""``."""
        counts = sorted({stack.libraries for _, stack in self.stacks})
        if not counts[-1]:
            return ""
        count = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        return f"{count} frame{'' if count == '1' else 's'} of libraries"

    def full(self) -> Iterator[str]:
        """Yield the lines of all stacks in full, the innermost frame first."""
        for ranks, stack in self.stacks:
            if len(self.stacks) > 1:
                yield f"{named(ranks)}:"
            yield from stack.lines()

    @property
    def _one(self) -> RankStack:
        return self.stacks[0][1]


@dataclass(frozen=True)
class Stacks:
    """Where every rank is at one moment.

    Attributes
    ----------
    ranks
        By rank.
    cell
        The cell that runs: ``In[7]``.
    clash
        How the ranks' collectives do not match; or ``""``.
    """

    ranks: Mapping[int, RankStack]
    cell: str = ""
    clash: str = ""

    @property
    def groups(self) -> tuple[StackGroup, ...]:
        """Ranks that do the same together, by the first of each."""
        alike: dict[Any, dict[RankStack, list[int]]] = {}
        for rank, stack in sorted(self.ranks.items()):
            key = (stack.doing, stack.users, stack.threads)
            alike.setdefault(key, {}).setdefault(stack, []).append(rank)
        return tuple(
            StackGroup(
                tuple(sorted(rank for ranks in stacks.values() for rank in ranks)),
                tuple((tuple(ranks), stack) for stack, ranks in stacks.items()),
            )
            for stacks in alike.values()
        )

    @property
    def headline(self) -> str:
        """``In[7] runs on ranks 0-3``; or that no cell runs, and what the ranks do then."""
        running = [rank for rank, stack in sorted(self.ranks.items()) if stack.runs]
        if not running:
            return "; ".join(["no cell runs", *(group.headline for group in self.groups)])
        return f"{self.cell} runs on {named(running)}"

    @property
    def told(self) -> tuple[StackGroup, ...]:
        """The groups of which there is more to tell than the headline does."""
        runs = any(stack.runs for stack in self.ranks.values())
        return tuple(group for group in self.groups if runs or group.users)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        yield self.headline
        if self.clash:
            yield self.clash
        for group in self.told:
            yield group.headline
            yield from (f"    {line}" for line in group.users)
            if group.folded:
                yield f"    … {group.folded}"


def stacks_of(
    answers: Mapping[int, Any],
    busy: Collection[int],
    others: Mapping[int, RankStack],
    cell: str,
) -> Stacks:
    """Put together what ranks have answered.

    Parameters
    ----------
    answers
        By rank (see `RankStack.from_wire`).
    busy
        Ranks that run a cell.
    others
        What is known of the ranks that did not answer.
    cell
        The cell that runs, as it is shown.
    """
    found = {r: RankStack.from_wire(wire, busy=r in busy) for r, wire in answers.items()}
    looks = {r: Look.from_wire(wire["look"]) for r, wire in answers.items() if r in busy}
    waiting = {rank: look for rank, look in looks.items() if _waits(look)}
    return Stacks({**found, **others}, cell, clash(waiting))


def _doing(look: Look) -> str:
    """Return what a rank in a cell does; its line stands among the frames."""
    if not _waits(look):
        return f"is at {look.place.line_text}" if look.place.line else str(look.place)
    told = f"waits in {look.where}"
    return f"{told} for {named(look.awaits)}" if look.awaits else told


def _waits(look: Look) -> bool:
    """Tell whether it waits for other ranks, if perhaps for what a thread of its own does."""
    return look.place.waits or bool(look.awaits)
