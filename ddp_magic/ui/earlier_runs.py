"""The curves of earlier runs of each cell, to compare the next one with."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from ddp_magic.ui.series import Curve

_RUNS: Final = 4
_CELLS: Final = 50
_POINTS: Final = 300

_kept: OrderedDict[str, deque[list[Curve]]] = OrderedDict()


def of(cell: str) -> list[Curve]:
    """Return the curves of a cell's earlier runs, the latest last."""
    return [curve for run in _kept.get(cell, ()) for curve in run]


def keep(cell: str, curves: Sequence[Curve]) -> None:
    """Keep the curves of a run that has ended, at less detail."""
    if not (cell and curves):
        return
    _kept.setdefault(cell, deque(maxlen=_RUNS)).append([_fewer(curve) for curve in curves])
    _kept.move_to_end(cell)
    while len(_kept) > _CELLS:
        _kept.popitem(last=False)


def _fewer(curve: Curve) -> Curve:
    chosen = np.unique(np.linspace(0, len(curve.steps) - 1, _POINTS).astype(int))
    return Curve(curve.name, curve.steps[chosen], curve.values[chosen])
