"""A virtual environment for what ``%%ddp`` is compared to, apart from the project's own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

_HERE = Path(__file__).parent
_FOLDER = _HERE / ".venv-peers"
_PYTHON = _FOLDER / "bin" / "python"
_INSTALLED = _FOLDER / "installed"
_CONSTRAINTS = _HERE.parent / "constraints.txt"
_PACKAGES = ("accelerate", "jupyter-distributed", "lightning", "nbdistributed")
_TIMEOUT_S = 600


def peers_python() -> str:
    """Return the interpreter of an environment that has the peers, made if there is none.

    It sees the packages of this interpreter's own, so that all import the same torch.

    Raises
    ------
    RuntimeError
        They could not be installed.
    """
    if not (_INSTALLED.exists() and _INSTALLED.read_text().split() == list(_PACKAGES)):
        print(f"Installing {', '.join(_PACKAGES)} into {_FOLDER} ...", file=sys.stderr, flush=True)
        _output(sys.executable, "-m", "venv", "--clear", str(_FOLDER))
        _see_own_packages()
        install = ("-m", "pip", "install", "--quiet", "--constraint", str(_CONSTRAINTS))
        _output(str(_PYTHON), *install, *_PACKAGES)
        _INSTALLED.write_text("\n".join(_PACKAGES))
    return str(_PYTHON)


def _see_own_packages() -> None:
    folder = _output(str(_PYTHON), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    Path(folder, "own.pth").write_text(sysconfig.get_path("purelib") + "\n")


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()
