"""Where a running cell's curves are seen: a plotly widget, pictures in its place, or nowhere."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from IPython.core.getipython import get_ipython
from IPython.display import DisplayHandle

from ddp_magic.ui.series import Curve
from ddp_magic.ui.still import still

if TYPE_CHECKING:
    from ddp_magic.ui.figure import Figure

_FIGURE_MODULE: Final = "ddp_magic.ui.figure"
_AT_ONCE_S: Final = 0.02
_NO_WIDGETS: Final = (
    "The loss curve appears when the cell ends: this frontend shows no Jupyter widgets."
)


class View(Protocol):
    """A place for curves; `finish` leaves the last word there.

    Attributes
    ----------
    fastest_s
        The least time between two drawings.
    """

    fastest_s: float

    def draw(self, curves: Sequence[Curve], caption: str) -> None: ...

    def finish(self, bundle: Mapping[str, Any]) -> None: ...


def view_for_frontend() -> View:
    """Return what suits whoever sent the cell that runs."""
    shell = get_ipython()
    if getattr(shell, "kernel", None) is None:
        return TextView()
    return WidgetView() if _has_a_page(shell) else PictureView()


def _has_a_page(shell: Any) -> bool:
    """Tell whether a page shows the cell: JupyterLab, Notebook 7 and VS Code send its id along.

    Widgets are for those alone. nbclient and papermill would keep the widget's whole state,
    five megabytes of script, in the notebook that they write.
    """
    return "cellId" in shell.get_parent().get("metadata", {})


class TextView:
    """No kernel, hence no frontend: the line of summary is printed at the end."""

    fastest_s = 1.0

    def draw(self, curves: Sequence[Curve], caption: str) -> None:
        pass

    def finish(self, bundle: Mapping[str, Any]) -> None:
        print(bundle["text/plain"])


class PictureView:
    """The still itself, shown again and again; needs nothing of the frontend.

    Parameters
    ----------
    reason
        Why there is no widget, if a user of widgets wants to know.
    """

    fastest_s = 1.0

    def __init__(self, reason: str = "") -> None:
        self._reason = reason
        self._output = _Output()

    def draw(self, curves: Sequence[Curve], caption: str) -> None:
        self._output.show(still(curves, " · ".join(filter(None, (caption, self._reason)))))

    def finish(self, bundle: Mapping[str, Any]) -> None:
        self._output.show(bundle)


class WidgetView:
    """A plotly widget, there once plotly is imported: a second or two in the kernel's life."""

    fastest_s = 0.2

    def __init__(self) -> None:
        self._import = _Import(_FIGURE_MODULE)
        self._output = _Output()
        self._figure: Figure | None = None
        self._instead: PictureView | None = None

    def draw(self, curves: Sequence[Curve], caption: str) -> None:
        if self._import.under_way:
            return
        if self._import.error is not None:
            self._draw_instead(curves, caption, self._import.error)
        elif self._figure is not None:
            self._figure.draw(curves)
        else:
            self._figure = self._import.module.Figure()
            self._figure.draw(curves)
            self._output.show(self._figure.bundle(otherwise=_NO_WIDGETS))

    def finish(self, bundle: Mapping[str, Any]) -> None:
        if self._instead is not None:
            self._instead.finish(bundle)
        else:
            self._output.show(bundle)
        if self._figure is not None:
            self._figure.close()

    def _draw_instead(self, curves: Sequence[Curve], caption: str, error: Exception) -> None:
        if self._instead is None:
            fix = "pip install plotly anywidget ipywidgets"
            self._instead = PictureView(f"no interactive chart: {error} ({fix})")
            self.fastest_s = self._instead.fastest_s
        self._instead.draw(curves, caption)


class _Output:
    """One output of the running cell, whose content is replaced."""

    def __init__(self) -> None:
        self._handle = DisplayHandle()
        self._shown = False

    def show(self, bundle: Mapping[str, Any]) -> None:
        put = self._handle.update if self._shown else self._handle.display
        put(dict(bundle), raw=True)
        self._shown = True


class _Import:
    """The import of a module on a thread of its own, so that output goes on meanwhile."""

    def __init__(self, name: str) -> None:
        self.error: Exception | None = None
        self._name = name
        self._thread = threading.Thread(target=self._run, name=f"import {name}", daemon=True)
        self._thread.start()
        self._thread.join(_AT_ONCE_S)  # all it takes once the module is there

    @property
    def under_way(self) -> bool:
        return self._thread.is_alive()

    @property
    def module(self) -> Any:
        return sys.modules[self._name]

    def _run(self) -> None:
        try:
            importlib.import_module(self._name)
        except Exception as error:
            self.error = error
