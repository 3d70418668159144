"""What the rank tells the user besides the cell's own output."""

from __future__ import annotations

from typing import Protocol


class Report(Protocol):
    """Where the parts of a rank say what they did."""

    def did(self, kind: str, text: str) -> None:
        """Add a fact to the one compact line of what a cell did (kind: ``model``, ``loader``)."""

    def notice(self, key: str, text: str) -> None:
        """Show one line to the user, once per ``key`` and session."""
