"""Within a training step that is compiled, this package's own code runs as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ddp_magic.rank.patching import Patches


class Untraced:
    """Tells dynamo, as soon as something is compiled, not to trace this package."""

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self) -> None:
        """Begin to."""
        self._patches.replace(torch, "compile", self._telling)

    def uninstall(self) -> None:
        """Give torch its function back."""
        self._patches.undo()

    def _telling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            _leave_untraced()
            return original(*args, **kwargs)

        return compile


@functools.cache
def _leave_untraced() -> None:
    from torch._dynamo import trace_rules  # a second's work, so not before it is needed

    trace_rules.add(__name__.partition(".")[0])
