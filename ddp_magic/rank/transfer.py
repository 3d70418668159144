"""Variables on their way between the notebook and this rank."""

from __future__ import annotations

import builtins
import pickle
from typing import Any

import torch

from ddp_magic.errors import UsageError
from ddp_magic.rank.shell import this_shell


def pull(payload: dict[str, Any]) -> Any:
    """Return the value of ``payload["name"]``, tensors as NumPy arrays."""
    name = payload["name"]
    namespace = this_shell().user_ns
    if name not in namespace and not hasattr(builtins, name):
        raise UsageError(f"there is no variable {name!r} on this rank")
    value = _without_torch(namespace.get(name, getattr(builtins, name, None)))
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(f"{name!r}, a {type(value).__name__}, cannot travel: {error}") from None
    return value


def push(payload: dict[str, Any]) -> None:
    """Set the variables in ``payload["variables"]``."""
    this_shell().user_ns.update(payload["variables"])


def _without_torch(value: Any) -> Any:
    """Turn the tensors in ``value`` into arrays, so that the notebook needs no torch."""
    if isinstance(value, torch.Tensor):
        return _as_array(value)
    if isinstance(value, (torch.device, torch.dtype)):
        return str(value)
    if type(value) in (list, tuple, set):
        return type(value)(_without_torch(item) for item in value)
    if isinstance(value, dict):
        return {key: _without_torch(item) for key, item in value.items()}
    return value


def _as_array(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach().cpu()
    if tensor.dtype is torch.bfloat16:  # NumPy has no such type; float32 holds every value
        tensor = tensor.float()
    return tensor.resolve_conj().resolve_neg().numpy()
