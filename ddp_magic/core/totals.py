"""What a loop over batches adds up: a share of the whole, on a rank that sees a part of each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

_KEEPING: Final = ("append", "extend", "update")
_NUMBERS: Final = ("item", "tolist", "numpy", "size", "numel")  # methods that make numbers
_BUILTINS: Final = ("float", "int", "len")
_COLLECTIVES: Final = ("all_reduce", "all_gather", "gather", "reduce")
_HELPERS: Final = ("mean", "sum", "gather")


def totals(loop: ast.For | ast.AsyncFor) -> list[str]:
    """Return the text of what a loop adds up or collects, number by number, batch by batch.

    ``total += loss.item()``, ``seen += len(x)`` and ``losses.append(loss.item())``; none if the
    loop itself brings the ranks' numbers together.
    """
    nodes = [node for statement in loop.body for node in ast.walk(statement)]
    if any(map(_brings_together, nodes)):
        return []
    return list(dict.fromkeys(name for node in nodes for name in _added_to(node)))


def _added_to(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.AugAssign(target=target, op=ast.Add(), value=value) if _is_measured(value):
            yield ast.unparse(target)
        case ast.Call(func=ast.Attribute(value=kept, attr=method), args=[value, *_]) if (
            method in _KEEPING and _is_measured(value)
        ):
            yield ast.unparse(kept)


def _is_measured(value: ast.expr) -> bool:
    """Tell whether a number is read from what a batch gave, and not from averaged gradients."""
    if "grad_norm" in ast.unparse(value):
        return False
    for node in ast.walk(value):
        match node:
            case ast.Call(func=ast.Attribute(attr=method)) if method in _NUMBERS:
                return True
            case ast.Call(func=ast.Name(id=name)) if name in _BUILTINS:
                return True
            case ast.Attribute(attr="shape"):
                return True
            case ast.Call(func=ast.Attribute(attr="sum" | "detach")):
                return True
    return False


def _brings_together(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="ddp"), attr=name)):
            return name in _HELPERS
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in _COLLECTIVES
    return False
