"""Which environment variables must be there before a process begins or imports torch."""

from __future__ import annotations

from collections.abc import Mapping

_EARLY = (
    "ATEN_",
    "DYLD_",
    "GOMP_",
    "KMP_",
    "LANG",
    "LC_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "PYTORCH_",
    "TORCH_",
)
_LATE = ("OMP_NUM_THREADS",)  # each rank sets its threads itself


def changed_too_late(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the variables that a process begun with ``then`` cannot be given any more.

    They are read as a process begins, or as torch and what it loads are imported. Others, such
    as CUDA_VISIBLE_DEVICES, are read when they are needed.
    """
    changed = {name for name, _ in then.items() ^ now.items()}
    return sorted(name for name in changed if name.startswith(_EARLY) and name not in _LATE)
