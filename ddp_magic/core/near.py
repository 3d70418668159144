"""What to say of a name that no rank has."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from ddp_magic.core.ranks import named

_MOST = 3


def no_such(name: str, known: Iterable[str], ranks: tuple[int, ...]) -> tuple[str, str]:
    """Return the cause and the fix: that ranks have nothing of this name, and what is like it."""
    cause = f"{name}: there is no such variable on {named(sorted(ranks))}"
    return cause, near(name, known)


def near(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the names that are most like one, or with those that there are."""
    known = sorted(set(known))
    word = re.sub(r"[*?\[\]!]", "", name).lower()
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(word, list(by_lower), n=_MOST, cutoff=0.5)
    close = close or [one for one in by_lower if word and word in one][:_MOST]
    if close:
        return f"did you mean {' or '.join(by_lower[one] for one in close)}?"
    if not known:
        return "no cell has set any variable yet"
    more = f" and {len(known) - 2 * _MOST} more" if len(known) > 2 * _MOST else ""
    return f"there are {', '.join(known[: 2 * _MOST])}{more}"
