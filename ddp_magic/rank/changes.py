"""What may have changed since a graph was walked: a parameter was made, moved, or laid out anew."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils.hooks import RemovableHandle

from ddp_magic.rank.patching import Patches


class Changes:
    """Counts the changes that modules tell of.

    Attributes
    ----------
    count
        While it is the same, a backward at the same place reaches the same parameters, as they
        were.
    """

    def __init__(self) -> None:
        self.count = 0
        self._patches = Patches()
        self._hooks: list[RemovableHandle] = []

    def install(self) -> None:
        """Begin to count."""
        self._patches.replace(nn.Module, "_apply", self._counting)
        self._hooks = [
            register_module_parameter_registration_hook(self._note_registration),
            register_module_module_registration_hook(self._note_registration),
        ]

    def uninstall(self) -> None:
        """Take the hooks off."""
        self._patches.undo()
        for hook in self._hooks:
            hook.remove()

    def note(self) -> None:
        """Count one more."""
        self.count += 1

    def _note_registration(self, module: nn.Module, name: str, value: Any) -> None:
        """Something with parameters was put into a module: graphs may reach what is new."""
        if isinstance(value, nn.Parameter) or (
            isinstance(value, nn.Module) and next(value.parameters(), None) is not None
        ):
            self.note()

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _apply(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            """Note that a module is moved, cast, or laid out otherwise."""
            self.note()
            return original(module, *args, **kwargs)

        return _apply
