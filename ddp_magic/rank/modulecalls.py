"""The calls of modules that are on the stack, and what the user calls modules and parameters."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import Tensor, nn

from ddp_magic.core.cell import CELL_FOLDER
from ddp_magic.rank.owners import look_around
from ddp_magic.rank.shell import this_shell
from ddp_magic.rank.where import is_users, outwards

_CALL = nn.Module._call_impl.__code__


@dataclass(frozen=True)
class ModuleCall:
    """A module that is being called.

    Attributes
    ----------
    inputs
        Its arguments and keyword arguments.
    frame
        Of the call, whose caller it leads to.
    """

    module: nn.Module
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    frame: FrameType


def module_calls(frame: FrameType | None) -> Iterator[ModuleCall]:
    """Yield the calls of modules that are on a stack, the innermost first."""
    while frame is not None:
        if frame.f_code is _CALL:
            held = frame.f_locals
            yield ModuleCall(held["self"], (held["args"], held["kwargs"]), frame)
        frame = frame.f_back


def line(frame: FrameType | None) -> str:
    """Return the nearest line of the user's code, or ``""``.

    ``line 12`` in the cell that runs, else ``line 12 of net.py`` or ``line 12 of In[3]``.
    """
    users = list(filter(is_users, outwards(frame)))
    if not users:
        return ""
    path = users[0].f_code.co_filename
    within = f" of {_file(path)}" if path != users[-1].f_code.co_filename else ""
    return f"line {users[0].f_lineno}{within}"


def _file(path: str) -> str:
    told = this_shell().compile.format_code_name(path) if CELL_FOLDER in path else None
    return told[1] if told else os.path.basename(path)


class Names:
    """What modules and parameters are called, seen from a place in the user's code.

    Parameters
    ----------
    frame
        The place.
    models
        Models, with names, that are known by other ways.
    """

    def __init__(
        self, frame: FrameType | None, models: Iterable[tuple[str, nn.Module]] = ()
    ) -> None:
        around = look_around(frame)
        seen = [*around.modules.values(), *models]
        self._tensors = around.tensors
        # In a method of a model's, `self` is a poor name for what has another.
        self._roots = sorted(seen, key=lambda root: root[0] == "self")

    def module(self, module: nn.Module) -> str:
        """``model.encoder.layers.3 (Linear)``; ``a Linear`` where it has no name."""
        module = getattr(module, "_orig_mod", module)  # `torch.compile` puts one around it
        kind = type(module).__name__
        paths = [
            _joined(name, path)
            for name, root in self._roots
            for path, part in root.named_modules()
            if part is module
        ]
        return f"{_fullest(paths)} ({kind})" if paths else f"a {kind}"

    def parameter(self, parameter: Tensor) -> str:
        """``model.encoder.layers.3.weight``, or what kind of a parameter it is."""
        paths = [
            _joined(name, path)
            for name, root in self._roots
            for path, one in root.named_parameters()
            if one is parameter
        ]
        if not paths and id(parameter) in self._tensors:
            paths = [self._tensors[id(parameter)]]
        return _fullest(paths) if paths else f"a parameter of shape {list(parameter.shape)}"


def _joined(name: str, path: str) -> str:
    return f"{name}.{path}".replace("._orig_mod", "").rstrip(".")


def _fullest(paths: list[str]) -> str:
    """Return the one from furthest out: a layer may have a variable of its own too."""
    return max(paths, key=lambda path: (not path.startswith("self"), path.count(".")))
