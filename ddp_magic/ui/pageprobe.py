"""A widget that shows nothing: that the page has run it is what there is to learn from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anywidget
import traitlets
from IPython.display import DisplayHandle

_WIDGET_MIME: Final = "application/vnd.jupyter.widget-view+json"
_ESM: Final = """
export default {
  render({ model }) {
    model.set("_ran", true);
    model.save_changes();
  },
};
"""


class PageProbe(anywidget.AnyWidget):
    """Is shown in the output of the cell that runs, until the page has run it.

    Parameters
    ----------
    answered
        Is called once, when it has.
    otherwise
        What a page shows that has no widgets.
    """

    _esm = _ESM
    _ran = traitlets.Bool(False).tag(sync=True)

    def __init__(self, answered: Callable[[], None], otherwise: str) -> None:
        super().__init__()
        self._answered = answered
        self._output = DisplayHandle()
        self.observe(self._on_ran, "_ran")
        view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        self._output.display({_WIDGET_MIME: view, "text/plain": otherwise}, raw=True)

    def _on_ran(self, _: Any) -> None:
        self._output.update({"text/plain": ""}, raw=True)
        self.layout.close()
        self.close()
        self._answered()
