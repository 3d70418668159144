"""Where ranks are in the user's code, and how that is told in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddp_magic.core.failures import named

_LONGEST_SOURCE = 50


@dataclass(frozen=True)
class Place:
    """Where one rank's code is.

    Attributes
    ----------
    line
        Number in the cell, or in ``file`` if that is not empty; 0 outside the user's code, None
        if the rank did not answer.
    source
        The line's text.
    collective
        The call of ``torch.distributed`` that it is in, or ``""``.
    """

    line: int | None
    source: str = ""
    file: str = ""
    collective: str = ""

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Place:
        """Read what a rank has answered."""
        return cls(**wire)

    def __str__(self) -> str:
        if self.line is None:
            return "is in compiled code that lets no other run"
        if not self.line:
            return "is not in your code"
        where = f"line {self.line}" + (f" of {self.file}" if self.file else "")
        if self.collective:
            return f"waits in {self.collective} ({where})"
        source = self.source.strip()
        if len(source) > _LONGEST_SOURCE:
            source = source[: _LONGEST_SOURCE - 3] + "..."
        return f"is at {where}: {source}" if source else f"is at {where}"


def describe_places(places: Mapping[int, Place]) -> str:
    """Return one line that groups the ranks by where they are."""
    groups: dict[str, list[int]] = {}
    for rank, place in sorted(places.items()):
        groups.setdefault(str(place), []).append(rank)
    told = []
    for text, ranks in groups.items():
        verb, _, rest = text.partition(" ")
        plural = {"is": "are", "waits": "wait"}[verb]
        told.append(f"{named(ranks)} {verb if len(ranks) == 1 else plural} {rest}")
    return "; ".join(told)
