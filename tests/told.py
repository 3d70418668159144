"""Reads what a user is told."""

from __future__ import annotations

import re

from ddp_magic.core.ranks import parse_ranks

_STOPPED = re.compile(r"ranks? ([\d,\s-]+?) (?:has|have) (?:stopped|failed) at ([^;\n]*)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def stopped(text: str) -> dict[int, str]:
    """Return where each rank was last told to have stopped in a debugger, or to have failed."""
    places: dict[int, str] = {}
    for ranks, place in _STOPPED.findall(text):
        places |= dict.fromkeys(parse_ranks(ranks, option="ranks"), place)
    return places


def plain(text: str) -> str:
    """Return text without its colours."""
    return _COLOUR.sub("", text)
