"""The ranks of the last cell side by side: each one's loss, and who makes the others wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ddp_magic.core.ranks import named
from ddp_magic.core.runstate import StepTime

_MUCH_SLOWER = 1.2  # than the median, is a straggler

Points = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class RankCharts:
    """What is drawn of all ranks.

    Attributes
    ----------
    losses
        The points of each rank's losses, by name and rank.
    times
        How long a step took each rank.
    missing
        Why others are not among them, by rank.
    """

    losses: Mapping[str, Mapping[int, Points]]
    times: Mapping[int, StepTime]
    missing: Mapping[int, str]

    @property
    def stragglers(self) -> tuple[int, ...]:
        """The ranks that need much longer for a step themselves than the others do."""
        if len(self.times) < 2 or any(one.waited_s is None for one in self.times.values()):
            return ()
        usual_s = median(one.own_s for one in self.times.values())
        return tuple(r for r, one in self.times.items() if one.own_s > _MUCH_SLOWER * usual_s)

    def lines(self) -> list[str]:
        """Return what is known in words."""
        lines = [
            f"rank {rank}: {1e3 * one.step_s:.3g} ms a step"
            + ("" if one.waited_s is None else f", {1e3 * one.waited_s:.3g} ms of it waiting")
            + (" (straggler)" if rank in self.stragglers else "")
            for rank, one in sorted(self.times.items())
        ]
        for name, of_ranks in self.losses.items():
            last = {rank: points[-1][1] for rank, points in sorted(of_ranks.items()) if points}
            lines.append(f"{name}: " + ", ".join(f"rank {r} {v:.4g}" for r, v in last.items()))
        lines += self.missing.values()
        if not self.times:
            lines.append("Step times are known of cells that train for some steps and seconds.")
        return lines

    @property
    def headline(self) -> str:
        """One line on who makes the others wait."""
        if not self.times and not self.losses:
            return "the last cell has trained nothing"
        if self.stragglers:
            return f"{named(self.stragglers)} made the others wait"
        return "no rank made the others wait much" if len(self.times) > 1 else "the last cell"

    def __str__(self) -> str:
        return "\n".join([self.headline, *self.lines()])
