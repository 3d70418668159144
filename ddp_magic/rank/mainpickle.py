"""What cells define, for processes that are spawned: `DataLoader` workers, say.

A spawned process imports the script that its parent runs, and so has its functions and classes. A
notebook has no script. So those of ``__main__`` are sent by value, and put into the ``__main__`` of
the process that takes them; lambdas and functions within functions too, which a script could not
send.
"""

from __future__ import annotations

import sys
import types
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

_OVERRIDE = "reducer_override"


class PickledMain:
    """Sends what is defined in ``__main__`` along to spawned processes."""

    def install(self) -> None:
        """Begin to."""
        setattr(ForkingPickler, _OVERRIDE, _reduce)

    def uninstall(self) -> None:
        """Leave the pickler as it was."""
        if vars(ForkingPickler).get(_OVERRIDE) is _reduce:
            delattr(ForkingPickler, _OVERRIDE)


def define(name: str, blob: bytes) -> Any:
    """Return what `_reduce` sent, having put it into ``__main__``; runs in the other process.

    What it refers to as well, for an object that comes back is sent as one of ``__main__``'s.
    """
    value = cloudpickle.loads(blob)
    main = vars(sys.modules["__main__"])
    for function in (value, *vars(value).values()):
        if isinstance(function, types.FunctionType):
            for key, used in function.__globals__.items():
                if getattr(used, "__module__", None) == "__main__":
                    main.setdefault(key, used)
    return main.setdefault(name, value) if name.isidentifier() else value


def _reduce(_: ForkingPickler, value: Any) -> Any:
    defined = isinstance(value, (types.FunctionType, type)) and value.__module__ == "__main__"
    if get_spawning_popen() is None or not defined:
        return NotImplemented
    return define, (value.__qualname__, cloudpickle.dumps(value))
