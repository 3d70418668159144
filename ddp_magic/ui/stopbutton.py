"""A button that stops a cell which runs in the background."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets
from IPython.display import DisplayHandle


class StopButton:
    """Shown in the output of the cell that runs, until it is closed.

    Parameters
    ----------
    stop
        Is called at each click, on the kernel's main thread.
    """

    def __init__(self, stop: Callable[[], object]) -> None:
        self._button = ipywidgets.Button(
            description="Stop",
            icon="stop",
            tooltip="Stop this cell on all its ranks; once more kills what does not end",
        )
        self._button.on_click(lambda _: stop())
        self._output = DisplayHandle()
        data = self._button._repr_mimebundle_() | {"text/plain": "%ddp interrupt stops this cell"}
        self._output.display(data, raw=True)

    def close(self) -> None:
        """Take it away; may be called on any thread, in the context of the cell."""
        self._output.update({"text/plain": ""}, raw=True)
        self._button.close()
