"""Where a running cell's panel is seen: a plotly widget, pictures in its place, or nowhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from IPython.core.getipython import get_ipython
from IPython.display import DisplayHandle

from ddp_magic.ui.controls import Controls
from ddp_magic.ui.page import has_a_page
from ddp_magic.ui.picture import Picture
from ddp_magic.ui.still import still

if TYPE_CHECKING:
    from ddp_magic.ui.figure import Figure

_WIDGET_MIME: Final = "application/vnd.jupyter.widget-view+json"
_FIX: Final = "pip install plotly anywidget ipywidgets"
_NO_WIDGETS: Final = (
    "The loss curve appears when the cell ends: no widget is shown here, or not yet."
)


class View(Protocol):
    """A place for a panel; `finish` leaves the last word there.

    Attributes
    ----------
    fastest_s
        The least time between two drawings.
    """

    fastest_s: float

    def draw(self, picture: Picture) -> None: ...

    def show_again(self) -> None: ...

    def finish(self, bundle: Mapping[str, Any]) -> None: ...


def view_for_frontend(controls: Controls | None = None) -> View:
    """Return what suits whoever sent the cell that runs.

    Parameters
    ----------
    controls
        What a widget's buttons do.
    """
    shell = get_ipython()
    if getattr(shell, "kernel", None) is None:
        return TextView()
    if not has_a_page(shell):
        return PictureView()
    try:
        from ddp_magic.ui.figure import Figure
    except ImportError as error:
        return PictureView(f"no interactive chart: {error} ({_FIX})")
    return WidgetView(lambda picture: Figure(picture, controls))


class TextView:
    """No kernel, hence no frontend: the line of summary is printed at the end."""

    fastest_s = 1.0

    def draw(self, picture: Picture) -> None:
        pass

    def show_again(self) -> None:
        pass

    def finish(self, bundle: Mapping[str, Any]) -> None:
        if bundle["text/plain"]:
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

    def draw(self, picture: Picture) -> None:
        if picture.curves:
            caption = " · ".join(filter(None, (picture.caption, self._reason)))
            self._output.show(still(picture.curves, caption))

    def show_again(self) -> None:
        self._output.show_again()

    def finish(self, bundle: Mapping[str, Any]) -> None:
        if bundle["text/plain"]:
            self._output.show(bundle)


class WidgetView:
    """A widget drawn by plotly.js, which the page lets the reader zoom and query."""

    fastest_s = 0.2

    def __init__(self, make_figure: Callable[[Picture], Figure]) -> None:
        self._make_figure = make_figure
        self._figure: Figure | None = None
        self._output = _Output()

    def draw(self, picture: Picture) -> None:
        if self._figure is not None:
            self._figure.draw(picture)
            return
        self._figure = self._make_figure(picture)
        view = {"version_major": 2, "version_minor": 0, "model_id": self._figure.model_id}
        self._output.show({_WIDGET_MIME: view, "text/plain": _NO_WIDGETS})

    def show_again(self) -> None:
        self._output.show_again()

    def finish(self, bundle: Mapping[str, Any]) -> None:
        self._output.show(bundle)
        if self._figure is not None:
            self._figure.close()


class _Output:
    """One output of the running cell, whose content is replaced."""

    def __init__(self) -> None:
        self._handle = DisplayHandle()
        self._shown: dict[str, Any] = {}

    def show(self, bundle: Mapping[str, Any]) -> None:
        put = self._handle.update if self._shown else self._handle.display
        self._shown = dict(bundle)
        put(self._shown, raw=True)

    def show_again(self) -> None:
        if self._shown:
            self._handle = DisplayHandle()
            self._handle.display(self._shown, raw=True)
