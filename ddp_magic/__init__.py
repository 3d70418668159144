"""Interactive DistributedDataParallel for Jupyter: ``%load_ext ddp_magic``, then ``%%ddp``.

From plain Python: ``from ddp_magic import Session``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddp_magic.errors import (
    AnomalyError,
    CellError,
    CellInterrupted,
    CellSyntaxError,
    CellTimeout,
    CollectiveError,
    DdpMagicError,
    Interrupted,
    ParityError,
    SetupError,
    StartError,
    StateError,
    UsageError,
)
from ddp_magic.version import __version__

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ddp_magic.kernel.session import Session

__all__ = [
    "AnomalyError",
    "CellError",
    "CellInterrupted",
    "CellSyntaxError",
    "CellTimeout",
    "CollectiveError",
    "DdpMagicError",
    "Interrupted",
    "ParityError",
    "Session",
    "SetupError",
    "StartError",
    "StateError",
    "UsageError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Session brings ipyparallel, which takes a third of a second to import.
    if name == "Session":
        from ddp_magic.kernel.session import Session

        return Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """``%load_ext ddp_magic``."""
    from ddp_magic.extension import load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """``%unload_ext ddp_magic``: ends the ranks and removes the magics."""
    from ddp_magic.extension import unload

    unload(shell)
