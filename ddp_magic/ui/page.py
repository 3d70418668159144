"""Who shows the cell that runs: a page, or a program that keeps what it is sent."""

from __future__ import annotations

from typing import Any


def has_a_page(shell: Any) -> bool:
    """Tell whether a page shows the cell: JupyterLab, Notebook 7 and VS Code send its id along.

    Widgets are for those alone. nbclient and papermill would keep a widget's whole state, of the
    curve's five megabytes of script, in the notebook that they write.
    """
    return bool(cell_id(shell))


def cell_id(shell: Any) -> str:
    """Return the id, in its notebook, of the cell that runs; ``""`` if it is not known."""
    parent: dict[str, Any] = getattr(shell, "get_parent", dict)()
    return str(parent.get("metadata", {}).get("cellId", ""))
