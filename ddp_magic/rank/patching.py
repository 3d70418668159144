"""Replace attributes of other packages for a while, and put them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class Patches:
    """The replacements that one object made, undone in reverse order."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set ``owner.name``, of a module or class, to ``make(original)``."""
        original = vars(owner)[name]
        setattr(owner, name, make(getattr(owner, name)))
        self._made.append((owner, name, original, vars(owner)[name]))

    def replace_in(self, owners: Iterable[Any], name: str, make: Callable[[Any], Any]) -> None:
        """Replace one function in all modules that have it, by the same replacement."""
        first, *others = owners
        self.replace(first, name, make)
        replacement = vars(first)[name]
        for owner in others:
            self.replace(owner, name, lambda _: replacement)

    def undo(self) -> None:
        """Put the originals back, where nothing else was put over the replacement since."""
        while self._made:
            owner, name, original, replacement = self._made.pop()
            if vars(owner)[name] is replacement:
                setattr(owner, name, original)
