"""The parts of a value as a rank tells them, and where ranks group by what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from ddp_magic.core.ranks import format_ranks, named

BLOCK = 65_536  # elements of a tensor that have one checksum

_T = TypeVar("_T")
Path = tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """One part of a value on one rank: a tensor, a number, or what holds others.

    Attributes
    ----------
    path
        Steps to it from the value: ``(".layers", "[0]", ".weight")``.
    type
        Its class.
    facets
        What else has to be alike before values are compared: ``{"shape": "(2, 3)"}``.
    text
        What it looks like, in a few words.
    digest
        Of its content: eight bytes for each `BLOCK` elements of a tensor.
    count
        How many elements a tensor has.
    number
        Its value, if it is a number.
    unseen
        Why its content was not looked at; ``""`` if it was.
    """

    path: Path
    type: str
    facets: Mapping[str, str]
    text: str = ""
    digest: bytes = b""
    count: int = 0
    number: int | float | None = None
    unseen: str = ""


def shown(path: Path) -> str:
    """Return a path as users write it, without what stands before it: ``layers[0].weight``."""
    if not path:
        return ""
    first, *rest = path
    if first.startswith("."):
        first = first[1:]
    elif first[1:2] in "'\"":
        first = first[2:-2]  # a key of the dict itself, as of a state dict
    return "".join([first, *rest])


def grouped(values: Mapping[int, _T]) -> list[tuple[tuple[int, ...], _T]]:
    """Return the ranks that hold each value, by their first rank."""
    groups: dict[_T, list[int]] = {}
    for rank, value in sorted(values.items()):
        groups.setdefault(value, []).append(rank)
    return [(tuple(ranks), value) for value, ranks in groups.items()]


def each(groups: list[tuple[tuple[int, ...], str]], most: int = 4) -> str:
    """Return the values of groups side by side: ``3 / 5``."""
    told = [text for _, text in groups[:most]]
    return " / ".join([*told, "…"] if len(groups) > most else told)


def of_groups(groups: list[tuple[int, ...]]) -> str:
    """Return which ranks are alike: ``ranks 0-1 / rank 2``."""
    return " / ".join(named(ranks) for ranks in groups)


def only_on(ranks: tuple[int, ...]) -> str:
    """Say that no other ranks have it."""
    return f"only on rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"
