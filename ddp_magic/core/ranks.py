"""Rank sets as users type and read them: ``0,2-3``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ddp_magic.errors import UsageError

_MOST_RANKS = 65_536  # a range is expanded before the number of ranks is known
_PLURAL = {"is": "are", "waits": "wait", "runs": "run", "was": "were", "has": "have"}
_SYNTAX = "give ranks and ranges with commas between, such as 0 or 0,2-3"


def parse_ranks(text: str, *, option: str = "-r/--ranks") -> tuple[int, ...]:
    """Read a rank set.

    Parameters
    ----------
    text
        Ranks and inclusive ranges separated by commas: ``0,2-3``.
    option
        The option that holds it, named in errors.

    Returns
    -------
    tuple of int
        The ranks, ascending.

    Raises
    ------
    UsageError
        An empty part, something that is no rank, an open or reversed range, a rank given twice.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        span = _parse_part(part.strip(), text, option)
        if twice := ranks.intersection(span):
            raise _error(text, option, f"rank {min(twice)} is given twice")
        ranks.update(span)
    return tuple(sorted(ranks))


def check_ranks(
    ranks: Iterable[int], world_size: int, *, option: str = "-r/--ranks"
) -> tuple[int, ...]:
    """Return the ranks as a tuple; raise `UsageError` if one is not below ``world_size``."""
    ranks = tuple(ranks)
    missing = [rank for rank in ranks if not 0 <= rank < world_size]
    if missing:
        allowed = "0" if world_size == 1 else f"0-{world_size - 1}"
        count = "1 rank" if world_size == 1 else f"{world_size} ranks"
        raise UsageError(
            f"{option} {format_ranks(ranks)}: {told_missing(missing)}",
            fix=f"of {count}, choose from {allowed}",
        )
    return ranks


def format_ranks(ranks: Iterable[int]) -> str:
    """Write a rank set compactly, ascending: ``0, 2-3``."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _parse_part(part: str, text: str, option: str) -> range:
    match = re.fullmatch(r"(\d+)(\s*-\s*(\d*))?", part, re.ASCII)
    if match is None:
        raise _error(text, option, f"{part!r} is not a rank" if part else "a rank is missing")
    first, dash, last = match.groups()
    if dash and not last:
        raise _error(text, option, f"{part!r} does not say where the range ends")
    start, stop = int(first), int(last or first)
    if stop < start:
        raise _error(text, option, f"{part!r} runs backwards")
    if stop >= _MOST_RANKS:
        raise _error(text, option, f"{part!r} is beyond {_MOST_RANKS} ranks")
    return range(start, stop + 1)


def _error(text: str, option: str, what: str) -> UsageError:
    shown = text if text.strip() else repr(text)
    return UsageError(f"{option} {shown}: {what}", fix=_SYNTAX)


def named(ranks: Iterable[int]) -> str:
    """Return ``rank 0`` or ``ranks 0, 2-3``."""
    ranks = tuple(ranks)
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"


def told_missing(ranks: Iterable[int]) -> str:
    """Return ``there is no rank 5`` or ``there are no ranks 2-5``."""
    ranks = tuple(ranks)
    return f"there {in_number('is', len(ranks))} no {named(ranks)}"


def told_of_each(told: Mapping[int, str]) -> list[str]:
    """Return a line for each group of ranks of which the same is told: ``ranks 0-1 are …``."""
    groups: dict[str, list[int]] = {}
    for rank, text in told.items():
        groups.setdefault(text, []).append(rank)
    return [f"{named(ranks)} {in_number(text, len(ranks))}" for text, ranks in groups.items()]


def in_number(text: str, count: int) -> str:
    """Return what one rank did as what several did: ``was killed`` becomes ``were killed``."""
    verb, _, rest = text.partition(" ")
    return f"{_PLURAL.get(verb, verb) if count > 1 else verb} {rest}".rstrip()
