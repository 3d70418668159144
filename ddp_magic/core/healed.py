"""What is said of dead ranks that have been replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddp_magic.core.ranks import named


@dataclass(frozen=True)
class Healed:
    """What was moved to the new ranks, and what was not.

    Attributes
    ----------
    ranks
        Those that were replaced.
    source
        The rank whose variables they have.
    variables, models, optimizers
        How many there are.
    left_out
        Why variables are missing, by name.
    without_graph
        Tensors whose values came along without how they were computed.
    differing
        Numbers and strings that were not the same on the ranks that lived.
    subgroups
        Whether the user's own process groups have gone.
    """

    ranks: tuple[int, ...]
    source: int
    variables: int = 0
    models: int = 0
    optimizers: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    without_graph: Sequence[str] = ()
    differing: Sequence[str] = ()
    subgroups: bool = False

    def line(self, elapsed_s: float) -> str:
        """Return all of it as one line."""
        verb = "is" if len(self.ranks) == 1 else "are"
        parts = [
            f"{named(self.ranks)} {verb} back with rank {self.source}'s variables"
            f" ({self._counts()}) in {elapsed_s:.1f} s"
        ]
        if self.left_out:
            told = ", ".join(f"{name} ({why})" for name, why in self.left_out.items())
            parts.append(f"not moved: {told}")
        if self.without_graph:
            parts.append(f"moved without autograd's graph: {', '.join(self.without_graph)}")
        if self.differing:
            parts.append(f"differed between ranks: {', '.join(self.differing)}")
        if self.subgroups:
            parts.append("groups of dist.new_group have to be made anew")
        return "; ".join(parts)

    def _counts(self) -> str:
        kinds = (("model", self.models), ("optimizer", self.optimizers))
        among = [f"{n} {kind}{'s' * (n != 1)}" for kind, n in kinds if n]
        return f"{self.variables}{', of them ' * bool(among)}{' and '.join(among)}"
