"""What users may import is decided here, not by accident."""

from __future__ import annotations

import subprocess
import sys

import ddp_magic
from ddp_magic import errors

_errors = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}


def test_the_public_names_are_these() -> None:
    assert set(ddp_magic.__all__) == {"Session", "__version__", *_errors}
    assert ddp_magic.__all__ == sorted(ddp_magic.__all__)
    assert all(getattr(ddp_magic, name) is not None for name in ddp_magic.__all__)


def test_the_errors_are_these() -> None:
    assert _errors == {
        "AnomalyError",
        "CellError",
        "CellInterrupted",
        "CellSyntaxError",
        "CellTimeout",
        "CollectiveError",
        "DdpMagicError",
        "Interrupted",
        "ParityError",
        "SetupError",
        "StartError",
        "StateError",
        "UsageError",
    }


def test_importing_brings_neither_torch_nor_ipyparallel() -> None:
    code = "import sys, ddp_magic; print({'torch', 'ipyparallel'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_session_brings_no_torch() -> None:
    code = "import sys; from ddp_magic import Session; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
