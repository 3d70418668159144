"""Who shows the cells: a page or a program; widgets and input there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ddp_magic.core.doctor.finding import Finding, degraded, ok

WIDGETS: Final = "widgets"
_IN_PAGE = "`%pip install jupyterlab_widgets anywidget` where the page is served, and reload it"


@dataclass(frozen=True)
class Frontend:
    """What is known in the notebook of whoever shows the cell.

    Attributes
    ----------
    has_kernel
        Whether this is a notebook's kernel, and not a terminal.
    has_page
        Whether a page shows the cell: JupyterLab, Notebook 7, VS Code.
    widget_error
        Why the kernel has no widgets; ``""`` if it has.
    no_input
        Why nobody can be asked; ``""`` if somebody can.
    """

    has_kernel: bool
    has_page: bool
    widget_error: str = ""
    no_input: str = ""


def check_widgets(facts: Frontend) -> Finding:
    """Judge the live curve, as far as the kernel knows; what the page can do it has to say."""
    if not facts.has_kernel:
        return ok(WIDGETS, "a terminal: curves are told in a line")
    if not facts.has_page:
        return ok(WIDGETS, "no page shows this cell: curves are pictures")
    if facts.widget_error:
        text = f"curves are pictures, renewed each second: {facts.widget_error}"
        return degraded(WIDGETS, text, "%pip install ipywidgets anywidget plotly")
    return ok(WIDGETS, "the kernel has them; the page is asked, and this line tells its answer")


def widgets_answered() -> Finding:
    """Return what is found when the page has run a widget of this kernel's."""
    return ok(WIDGETS, "the page has run one of this kernel's: curves are live")


def widgets_not_answered() -> str:
    """Return what stands where the page cannot show a widget."""
    return f"ddp doctor: this page shows no widgets, so there is no live curve: {_IN_PAGE}"


def check_input(facts: Frontend) -> Finding:
    """Judge whether `breakpoint()` and `input()` have somebody to ask."""
    if facts.no_input:
        text = f"{facts.no_input}: breakpoint() and input() on ranks are not asked"
        return degraded("input", text, "open the notebook in JupyterLab to be asked")
    return ok("input", "breakpoint() and input() on ranks ask below the cell")
