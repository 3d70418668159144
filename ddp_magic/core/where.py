"""Where ranks are in the user's code, and how that is told in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddp_magic.core.ranks import told_of_each

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
    in_backward
        Whether autograd runs, in which gradients are averaged.
    """

    line: int | None
    source: str = ""
    file: str = ""
    collective: str = ""
    in_backward: bool = False

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Place:
        """Read what a rank has answered."""
        return cls(**wire)

    @property
    def waits(self) -> bool:
        """Whether it may be waiting for other ranks."""
        return bool(self.collective) or self.in_backward

    @property
    def where(self) -> str:
        """``all_reduce (line 3)``, of a place that waits."""
        return f"{self.collective or 'backward()'} ({self.line_text})"

    @property
    def line_text(self) -> str:
        """``line 3`` or ``line 3 of train.py``."""
        return f"line {self.line}" + (f" of {self.file}" if self.file else "")

    @property
    def told(self) -> str:
        """``line 3: x = y + 1``."""
        source = self.source.strip()
        if len(source) > _LONGEST_SOURCE:
            source = source[: _LONGEST_SOURCE - 3] + "..."
        return f"{self.line_text}: {source}" if source else self.line_text

    def __str__(self) -> str:
        if self.line is None:
            return "is in compiled code that lets no other run"
        if not self.line:
            return "is not in your code"
        if self.collective:
            return f"waits in {self.where}"
        return f"is at {self.told}"


def describe_places(places: Mapping[int, object]) -> str:
    """Return one line that groups the ranks by where they are."""
    return "; ".join(told_of_each({rank: str(place) for rank, place in places.items()}))
