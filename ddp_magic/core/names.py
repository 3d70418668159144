"""Names of variables as users type them: ``model``, ``model.layers[0].weight``, ``state["lr"]``."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddp_magic.errors import UsageError

_FIX = "give a name, with .attributes and [indices] if need be; a %%ddp cell runs anything else"
_WORD = re.compile(r"""(?:[^\s\["']|"[^"]*"|'[^']*'|\[(?:[^\]"']|"[^"]*"|'[^']*')*\])+|["'\[]""")


@dataclass(frozen=True)
class Step:
    """One step from a value to a part of it.

    Attributes
    ----------
    key
        An attribute's name, or an index or key.
    is_item
        Whether it is the latter.
    """

    key: str | int
    is_item: bool

    def __str__(self) -> str:
        return f"[{self.key!r}]" if self.is_item else f".{self.key}"


@dataclass(frozen=True)
class VariablePath:
    """Where a value is: a variable's name, and steps to a part of its value."""

    root: str
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return self.root + "".join(map(str, self.steps))

    def to_wire(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {"root": self.root, "steps": [(step.key, step.is_item) for step in self.steps]}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> VariablePath:
        """Rebuild it from `to_wire`."""
        return cls(wire["root"], tuple(Step(*step) for step in wire["steps"]))


def parse_path(text: str) -> VariablePath:
    """Read a variable's name, and attributes and indices below it.

    Raises
    ------
    UsageError
        It holds anything else: nothing is evaluated.
    """
    try:
        node: ast.AST = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(f"{text.strip() or repr(text)}: not a variable", fix=_FIX) from None
    steps: list[Step] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            steps.append(Step(node.attr, is_item=False))
        elif isinstance(node, ast.Subscript):
            steps.append(Step(_key(node.slice, text), is_item=True))
        else:
            raise _refused(text, node)
        node = node.value
    return VariablePath(node.id, tuple(reversed(steps)))


def split_names(line: str) -> list[str]:
    """Split at blanks, but not at those within quotes or brackets."""
    return _WORD.findall(line)


def _key(node: ast.expr, text: str) -> str | int:
    try:
        key = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise _refused(text, node) from None
    if type(key) not in (str, int):
        raise _refused(text, node)
    return key  # type: ignore[no-any-return]


def _refused(text: str, node: ast.AST) -> UsageError:
    what = "calls are" if isinstance(node, ast.Call) else f"{ast.unparse(node)!r} is"
    return UsageError(f"{text.strip()}: {what} not evaluated", fix=_FIX)
