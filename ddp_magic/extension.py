"""Wires the magics into a shell, and out of it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddp_magic.magics import DdpMagics

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_NAME = "ddp"


def load(shell: InteractiveShell) -> None:
    """Give ``shell`` its ``%ddp`` and ``%%ddp``, and begin what the first cell will need."""
    magics = DdpMagics(shell)
    shell.register_magics(magics)
    magics.cell_help.install()
    magics.warm()


def unload(shell: InteractiveShell) -> None:
    """End the ranks and take the magics away."""
    manager = shell.magics_manager
    magics = manager.registry.pop(DdpMagics.__name__, None)
    for kind in ("line", "cell"):
        manager.magics[kind].pop(_NAME, None)
    if magics is not None:
        magics.cell_help.uninstall()
        magics.close()
