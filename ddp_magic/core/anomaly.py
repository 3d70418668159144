"""Values that are not finite, as they are told: how many, among which, in which part of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_INDICES_SHOWN = 10


@dataclass(frozen=True)
class Census:
    """What a tensor holds.

    Attributes
    ----------
    shape, dtype
        Of the tensor.
    nan, infinite
        How many of its values are so.
    low, high
        The least and the greatest of the others; None if there are none, or they have no order.
    elements
        Along its first dimension, where there are values that are not finite.
    """

    shape: tuple[int, ...]
    dtype: str
    nan: int = 0
    infinite: int = 0
    low: float | None = None
    high: float | None = None
    elements: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """Number of values."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def counts(self) -> str:
        """``5 NaN and 1 infinite of 640 values``; ``is NaN`` of one value is for others to say."""
        found = [f"{self.nan:,} NaN"] * bool(self.nan)
        found += [f"{self.infinite:,} infinite"] * bool(self.infinite)
        values = "value" if self.total == 1 else "values"
        return f"{' and '.join(found) or 'no such'} of {self.total:,} {values}"

    @property
    def batch_indices(self) -> str:
        """``batch indices 0, 7 and 12 more of 64``; ``""`` where all or none are affected."""
        if len(self.shape) < 1 or not 0 < len(self.elements) < self.shape[0]:
            return ""
        shown = ", ".join(map(str, self.elements[:_INDICES_SHOWN]))
        more = len(self.elements) - _INDICES_SHOWN
        also = f" and {more} more" if more > 0 else ""
        index = "index" if len(self.elements) == 1 else "indices"
        return f"batch {index} {shown}{also} of {self.shape[0]}"

    @property
    def span(self) -> str:
        """``[4, 10] float32, from -2.1 to 3.4``."""
        kind = f"{list(self.shape)} {self.dtype}"
        return kind if self.low is None else f"{kind}, from {self.low:.4g} to {self.high:.4g}"


def told_inputs(inputs: Sequence[Census]) -> str:
    """Return how finite a module's inputs were: what follows "the output of …;"."""
    its = "its inputs" if len(inputs) > 1 else "its input"
    verb = "were" if len(inputs) > 1 else "was"
    if not inputs:
        return "it has no input of floating point"
    infinite = sum(one.infinite for one in inputs)
    return f"{its} had no NaN, but {infinite:,} infinite" if infinite else f"{its} {verb} finite"
