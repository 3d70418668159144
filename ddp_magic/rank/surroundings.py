"""What cells have changed of a process besides its variables, taken over by another rank."""

from __future__ import annotations

import importlib
import linecache
import os
import random
import re
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any

import torch

from ddp_magic.rank.shell import cell_folder

_IMPORTED = re.compile(r"^[ \t]*import[ \t]+(\w+(?:\.\w+)+)", re.MULTILINE)
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "grad": (torch.is_grad_enabled, torch.set_grad_enabled),
    "matmul": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
}


def surroundings(own_variables: Collection[str]) -> dict[str, Any]:
    """Return the folder, the paths, the environment, torch's settings and the cells' source.

    Parameters
    ----------
    own_variables
        Those of the environment that tell a rank its place.
    """
    environ = {key: value for key, value in os.environ.items() if key not in own_variables}
    cells = {name: e for name, e in linecache.cache.items() if name.startswith(cell_folder())}
    return {
        "folder": os.getcwd(),
        "path": list(sys.path),
        "environ": environ,
        "settings": {name: get() for name, (get, _) in _SETTINGS.items()},
        "cells": cells,
        "modules": _imported_below("".join(linecache.getlines(name)) for name in cells),
    }


def take_surroundings(taken: dict[str, Any], own_variables: Collection[str]) -> None:
    """Let this process be like the one that they come from."""
    os.chdir(taken["folder"])
    sys.path[:] = taken["path"]
    for key in os.environ.keys() - taken["environ"].keys() - set(own_variables):
        del os.environ[key]
    os.environ.update(taken["environ"])
    for name, (_, put) in _SETTINGS.items():
        put(taken["settings"][name])
    linecache.cache.update(taken["cells"])
    for name in taken["modules"]:
        with suppress(Exception):  # whatever its code raises; the cell that uses it will say so
            importlib.import_module(name)


def _imported_below(sources: Iterable[str]) -> list[str]:
    """Return the modules of packages that ``import package.module`` has put in place."""
    names = dict.fromkeys(name for source in sources for name in _IMPORTED.findall(source))
    return [name for name in names if name in sys.modules]


def random_states() -> dict[str, Any]:
    """Return the states of the process-wide random generators."""
    numpy = sys.modules.get("numpy")
    return {
        "python": random.getstate(),
        "numpy": numpy.random.get_state() if numpy is not None else None,
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
    }


def take_random_states(states: dict[str, Any]) -> None:
    """Draw from now on what the other process would."""
    random.setstate(states["python"])
    if states["numpy"] is not None:
        import numpy

        numpy.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"].cpu())
