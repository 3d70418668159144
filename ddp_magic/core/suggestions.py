"""What may come next on a ``%ddp`` or ``%%ddp`` line, for completion."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddp_magic.core.options import CELL_OPTIONS, SUBCOMMANDS, Option, Subcommand

_LINE = re.compile(r"\s*(%%?)ddp\s+(.*)", re.DOTALL)
_CELL = re.compile(r"\s*%%ddp(?=\s|$)")
_OF_RANKS = ("vars", "diff", "pull")
_ELSEWHERE = ("push", "run")  # the notebook's own variables, files: IPython completes those


@dataclass(frozen=True)
class Suggestions:
    """What may stand where the cursor is.

    Attributes
    ----------
    fragment
        What has been typed of it.
    words
        What it may become.
    of_ranks
        Or a variable of the ranks.
    """

    fragment: str
    words: tuple[str, ...] = ()
    of_ranks: bool = False


def suggest(line: str) -> Suggestions | None:
    """Return what may follow a line up to the cursor; None if that is not for us to say."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    tokens = re.split(r"\s+", match[2])
    *before, fragment = tokens
    if match[1] == "%%":
        return _options(fragment, before, CELL_OPTIONS)
    if not before:
        return _matching(fragment, [sub.name for sub in SUBCOMMANDS])
    known = [sub for sub in SUBCOMMANDS if sub.name == before[0]]
    return _of_subcommand(fragment, before[1:], known[0]) if known else Suggestions(fragment)


def body_at(cell: str, cursor: int) -> tuple[str, int] | None:
    """Return the code of a ``%%ddp`` cell and where the cursor is in it.

    None if it is no such cell, or the cursor is on the magic's own line.
    """
    header = _CELL.match(cell)
    end = cell.find("\n", header.end()) if header else -1
    return None if end < 0 or cursor <= end else (cell[end + 1 :], cursor - end - 1)


def _of_subcommand(fragment: str, before: list[str], sub: Subcommand) -> Suggestions | None:
    typed_flags = fragment.startswith("-")
    if _awaiting(before, sub.options) is not None or typed_flags:
        return _options(fragment, before, sub.options)
    if sub.name in _ELSEWHERE:
        return None
    if sub.name in _OF_RANKS:
        return Suggestions(fragment, of_ranks=True)
    if sub.name == "help":
        return _matching(fragment, [one.name for one in SUBCOMMANDS])
    return _options(fragment, before, sub.options)


def _options(fragment: str, before: Sequence[str], options: Iterable[Option]) -> Suggestions:
    options = tuple(options)
    waiting = _awaiting(before, options)
    if waiting is not None:
        return _matching(fragment, waiting.choices)
    flag, equals, value = fragment.partition("=")
    if equals:
        chosen = [option for option in options if flag in option.flags]
        return _matching(value, chosen[0].choices if chosen else ())
    given = {token.partition("=")[0] for token in before}
    left = [option for option in options if not given.intersection(option.flags)]
    flags = [flag for option in left for flag in option.flags]
    if not fragment.startswith("-"):
        flags = [flag for flag in flags if flag.startswith("--")]
    return _matching(fragment, flags)


def _awaiting(before: Sequence[str], options: Iterable[Option]) -> Option | None:
    """Return the option whose value comes next, if one does."""
    last = before[-1] if before else ""
    return next((one for one in options if one.takes_value and last in one.flags), None)


def _matching(fragment: str, words: Iterable[str]) -> Suggestions:
    return Suggestions(fragment, tuple(word for word in words if word.startswith(fragment)))
