"""Find the user's modules that own some parameters, and the names they go by.

An optimizer is given parameters, not the model they belong to. The model is found where the
user's code can see it: in the local and global variables of the frames that called, and one
step further, in the attributes of objects and the items of containers that these name.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

_DEPTH = 2  # trainer.models["g"] is two steps from the variable `trainer`
_LARGEST_CONTAINER = 1000
_OPAQUE = (
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.FrameType,
    torch.optim.Optimizer,
    type,
)
_RUNNERS = ("IPython", "ipykernel", "ipyparallel")
_IPYTHON_CACHES = ("In", "Out")


@dataclass
class Surroundings:
    """What the calling code can name: modules and tensors by identity, with their names."""

    modules: dict[int, tuple[str, nn.Module]] = field(default_factory=dict)
    tensors: dict[int, str] = field(default_factory=dict)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the nearest frame, from `frame` outwards, that is neither torch's nor ours."""
    while frame is not None and _belongs_to(frame, ("torch", "ddp_magic")):
        frame = frame.f_back
    return frame


def look_around(frame: FrameType | None) -> Surroundings:
    """Collect the modules and tensors that `frame` and its callers can name."""
    found = Surroundings()
    for scope in _scopes(frame):
        for name, value in list(scope.items()):
            if not name.startswith("_") and name not in _IPYTHON_CACHES:
                _collect(found, name, value, _DEPTH)
    return found


def look_away(frame: FrameType | None) -> None:
    """Let go of variables that have been given up since these frames were looked at.

    Before Python 3.13 a frame keeps the copy of its variables that it was asked for.
    """
    for _ in _scopes(frame):
        pass


def find_owners(wanted: Collection[int], around: Surroundings) -> list[tuple[str, nn.Module]]:
    """Return the outermost modules, with their names, that hold any of the wanted parameters.

    Parameters
    ----------
    wanted
        The identities (``id``) of the parameters.
    around
        Where to look.
    """
    holders: dict[int, tuple[str, nn.Module]] = {}
    for name, module in around.modules.values():
        model = getattr(module, "_orig_mod", module)  # torch.compile's wrapper adds nothing
        if not is_managed(model) and _holds(model, wanted):
            holders.setdefault(id(model), (name, model))
    inner = {
        id(child)
        for _, model in holders.values()
        for child in model.modules()
        if child is not model
    }
    outermost = [holder for key, holder in holders.items() if key not in inner]
    return [_innermost_container(name, model, wanted) for name, model in outermost]


def is_managed(module: nn.Module) -> bool:
    """Tell whether torch.distributed synchronises this module already (DDP, FSDP)."""
    return any(
        base.__module__.startswith(("torch.distributed", "torch.nn.parallel.distributed"))
        for base in type(module).__mro__
    )


def managed_parameters(modules: Collection[nn.Module]) -> set[int]:
    """Return the identities of all parameters below managed modules."""
    return {
        id(parameter)
        for module in modules
        for part in module.modules()
        if is_managed(part)
        for parameter in part.parameters()
    }


def _innermost_container(
    name: str, module: nn.Module, wanted: Collection[int]
) -> tuple[str, nn.Module]:
    """Descend through mere containers: a GAN's class without a ``forward`` is two models."""
    while type(module).forward is nn.Module.forward and not module._parameters:
        inside = [(n, child) for n, child in module.named_children() if _holds(child, wanted)]
        if len(inside) != 1:
            break
        name, module = f"{name}.{inside[0][0]}", inside[0][1]
    return name, module


def _holds(module: nn.Module, wanted: Collection[int]) -> bool:
    return any(id(parameter) in wanted for parameter in module.parameters())


def _scopes(frame: FrameType | None) -> Iterator[dict[str, Any]]:
    seen: set[int] = set()
    while frame is not None and not _belongs_to(frame, _RUNNERS):
        if not _belongs_to(frame, ("torch", "ddp_magic")):
            for scope in (frame.f_locals, frame.f_globals):
                if id(scope) not in seen:
                    seen.add(id(scope))
                    yield scope
        frame = frame.f_back


def _belongs_to(frame: FrameType, packages: tuple[str, ...]) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in packages


def _collect(found: Surroundings, name: str, value: Any, depth: int) -> None:
    if isinstance(value, nn.Module):
        found.modules.setdefault(id(value), (name, value))
    elif isinstance(value, Tensor):
        found.tensors.setdefault(id(value), name)
    elif depth:
        for label, item in _inside(name, value):
            _collect(found, label, item, depth - 1)


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in islice(list(value.items()), _LARGEST_CONTAINER):
            yield f"{name}[{key!r}]", item
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value[:_LARGEST_CONTAINER]):
            yield f"{name}[{index}]", item
    elif not isinstance(value, _OPAQUE):
        for key, item in list(_attributes(value).items()):
            yield f"{name}.{key}", item


def _attributes(value: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}
