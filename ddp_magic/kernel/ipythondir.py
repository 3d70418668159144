"""IPython's folder, for processes whose user may not write into the usual one."""

from __future__ import annotations

import os
from pathlib import Path


def ipython_environment(folder: Path) -> dict[str, str]:
    """Return what the environment of a process of IPython's needs besides this one's.

    Where the home cannot be written, as in a container, each would warn of it below the user's cell
    and make a folder for temporary files that nobody removes.

    Parameters
    ----------
    folder
        The session's, which is removed at its end.
    """
    usual = Path(os.environ.get("IPYTHONDIR") or "~/.ipython").expanduser()
    place = usual if usual.exists() else usual.parent
    return {} if os.access(place, os.W_OK) else {"IPYTHONDIR": str(folder / "ipython")}
