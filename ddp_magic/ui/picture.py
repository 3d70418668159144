"""What a panel shows at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ddp_magic.ui.series import Curve

_MOST_PAIRS: Final = 500


class StepsAt:
    """How many training steps had been made at what time: the other x axes of the curves.

    Attributes
    ----------
    pairs
        ``(seconds, step)``, both growing; at most some 500, however long the run.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[float, int]] = []

    def add(self, at_s: float, step: int) -> None:
        """Append a pair; what is not later is left out."""
        if self.pairs and at_s <= self.pairs[-1][0]:
            return
        self.pairs.append((at_s, step))
        if len(self.pairs) > _MOST_PAIRS:
            del self.pairs[1:-1:2]


@dataclass(frozen=True)
class Picture:
    """The curves of a cell, and what stands above them.

    Attributes
    ----------
    caption
        One line of summary.
    head
        What the ranks do, in words (see `ddp_magic.ui.head`); empty before that is known.
    steps_at
        `StepsAt.pairs`.
    earlier
        Curves of runs of the same cell before.
    """

    curves: Sequence[Curve]
    caption: str = ""
    head: dict[str, Any] = field(default_factory=dict)
    steps_at: Sequence[tuple[float, int]] = ()
    earlier: Sequence[Curve] = ()
