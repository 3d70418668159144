"""What the panel's buttons do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Controls:
    """What the buttons do; called on any thread.

    Attributes
    ----------
    stop
        Stops the cell.
    where
        Returns where its ranks are.
    """

    stop: Callable[[], object]
    where: Callable[[], str]
