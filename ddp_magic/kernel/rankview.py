"""One rank's variables: ``session[2]["loss"]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddp_magic.core.vartable import Variables


class RankView:
    """What one rank holds.

    Parameters
    ----------
    rank
        Which one.
    pull, vars
        The session's methods of these names.
    """

    def __init__(
        self, rank: int, pull: Callable[[str, int], Any], vars: Callable[[str, Any], Variables]
    ) -> None:
        self.rank = rank
        self._pull = pull
        self._vars = vars

    def __getitem__(self, name: str) -> Any:
        """Return a variable's value, as `Session.pull` does.

        Raises
        ------
        UsageError
            There is none of this name on this rank, or its value cannot travel.
        """
        return self._pull(name, self.rank)

    def vars(self, pattern: str = "") -> Variables:
        """Return this rank's variables (see `Session.vars`)."""
        return self._vars(pattern, (self.rank,))

    def __repr__(self) -> str:
        return f"<rank {self.rank}>"
