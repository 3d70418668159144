"""Finds variables and parts of them without running the user's code.

What is asked while a cell runs, from another thread, must not call a property or an index of the
user's that might wait in a collective.
"""

from __future__ import annotations

import collections
import inspect
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from ddp_magic.core.names import Step, VariablePath
from ddp_magic.errors import UsageError
from ddp_magic.rank.peek import COMPILED

_INDEXED = (
    dict,
    list,
    tuple,
    str,
    bytes,
    range,
    collections.deque,
    types.MappingProxyType,
    np.ndarray,
    torch.Tensor,
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.ParameterList,
    nn.ParameterDict,
)
_MISSING = object()


class Missing(UsageError):
    """There is no such variable, attribute or index here."""


def find(path: VariablePath, namespace: Mapping[str, Any]) -> Any:
    """Return the value at a path.

    Raises
    ------
    Missing
        There is none.
    UsageError
        Looking it up would run code of the user's.
    """
    if path.root not in namespace:
        raise Missing(f"there is no variable {path.root!r}")
    value, so_far = namespace[path.root], path.root
    for step in path.steps:
        value = _item(value, step, so_far) if step.is_item else _attribute(value, step, so_far)
        so_far += str(step)
    return value


def _item(value: Any, step: Step, so_far: str) -> Any:
    kind: Any = type(value)
    if not issubclass(kind, _INDEXED) or not _is_library_method(kind, "__getitem__"):
        raise UsageError(f"{so_far}{step}: to index a {kind.__name__} would run its own code")
    try:
        return value[step.key]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Missing(f"there is no {so_far}{step}: {type(error).__name__}: {error}") from None


def _attribute(value: Any, step: Step, so_far: str) -> Any:
    name = str(step.key)
    found = _static(value, name)
    if found is _MISSING and isinstance(value, nn.Module):
        held = (value.__dict__.get(kind) or {} for kind in ("_parameters", "_buffers", "_modules"))
        found = next((one[name] for one in held if name in one), _MISSING)
    if found is _MISSING:
        raise Missing(f"there is no {so_far}{step}")
    if isinstance(found, COMPILED) or _is_torchs(found):
        return getattr(value, name)
    if isinstance(found, (types.FunctionType, classmethod, staticmethod)):
        return getattr(value, name)
    if hasattr(type(found), "__get__") and not isinstance(value, (type, types.ModuleType)):
        raise UsageError(f"{so_far}{step} is computed by {type(value).__name__}'s own code")
    return found


def _static(value: Any, name: str) -> Any:
    return inspect.getattr_static(value, name, _MISSING)


def _is_torchs(found: Any) -> bool:
    """Tell whether it is a property that torch or NumPy define, such as ``Tensor.grad``."""
    function = found.fget if isinstance(found, property) else None
    return str(getattr(function, "__module__", "")).partition(".")[0] in ("torch", "numpy")


def _is_library_method(kind: type, name: str) -> bool:
    """Tell whether a class has a method from Python, NumPy or torch, and not from the user."""
    for base in kind.__mro__:
        if name in vars(base):
            return base.__module__.partition(".")[0] in (
                "builtins",
                "collections",
                "numpy",
                "torch",
            )
    return False
