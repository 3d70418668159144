"""What a rank must know to run one cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class CellPlan:
    """How one cell is run, the same on every rank that runs it.

    Attributes
    ----------
    number
        Which of the session's cells it is, the same on all ranks.
    execution_count
        The number the notebook shows beside the cell; None outside a notebook.
    ranks
        The ranks that run the cell, ascending. The first is the lead rank.
    wrap
        Attach the models that train.
    shard
        Shard the loaders made or iterated.
    batch
        ``"global"`` or ``"per-rank"``: what a loader's batch size means.
    plot
        Record the losses for the live curve.
    header
        The lines that stand above the code in the notebook's cell, for line numbers.
    resync
        Bring the models together first: the ranks may not have run the same code since they
        last were.
    detect_anomaly
        Fail where a value that is not finite first appears.
    check
        Compare all models as it ends.
    no_input
        Why nobody can answer `breakpoint()` and `input()`; ``""`` if somebody can.
    """

    number: int
    execution_count: int | None
    ranks: tuple[int, ...]
    wrap: bool = True
    shard: bool = True
    batch: str = "global"
    plot: bool = True
    header: str = ""
    resync: bool = False
    detect_anomaly: bool = False
    check: bool = False
    no_input: str = ""

    def to_wire(self) -> dict[str, Any]:
        """Return the plan as JSON-able values."""
        return asdict(self) | {"ranks": list(self.ranks)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> CellPlan:
        """Rebuild a plan from `to_wire`; an unknown or missing entry raises `TypeError`."""
        unknown = set(wire) - {field.name for field in fields(cls)}
        if unknown:
            raise TypeError(f"a cell's plan has no {', '.join(sorted(unknown))}")
        return cls(**{**wire, "ranks": tuple(wire["ranks"])})
