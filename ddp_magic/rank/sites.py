"""The places in the user's code that call ``backward()``, and what is known of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType

from ddp_magic.rank.loose import LooseTensors

_KEPT = 500


@dataclass(frozen=True)
class _Site:
    code: CodeType  # keeps it alive, so that its id is of no other
    generation: int
    loose: tuple[tuple[LooseTensors, int], ...]

    def is_current(self, generation: int) -> bool:
        """Tell whether no parameter was made, and no tensor went, since the graph was walked."""
        return self.generation == generation and (
            not self.loose or all(len(loose.values()) == size for loose, size in self.loose)
        )


class Sites:
    """Tells when the graph of a backward has to be walked: not again for the same code."""

    def __init__(self) -> None:
        self._sites: dict[tuple[int, int], _Site] = {}

    def knows(self, frame: FrameType, generation: int) -> bool:
        """Tell whether the graph at this call was walked since parameters were last made."""
        site = self._sites.get((id(frame.f_code), frame.f_lasti))
        return site is not None and site.is_current(generation)

    def clear(self) -> None:
        """Have every graph walked again."""
        self._sites.clear()

    def add(self, frame: FrameType, generation: int, loose: Sequence[LooseTensors]) -> None:
        """Note that the graph at this call was walked now, and the loose tensors met."""
        if len(self._sites) >= _KEPT:
            self._sites.clear()
        sizes = tuple((some, len(some.values())) for some in loose)
        key = (id(frame.f_code), frame.f_lasti)
        self._sites[key] = _Site(frame.f_code, generation, sizes)
