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


def totals(loop: ast.For | ast.AsyncFor, program: ast.AST | None = None) -> list[str]:
    """Return the text of what a loop adds up or collects, number by number, batch by batch.

    ``total += loss.item()``, ``seen += len(x)`` and ``losses.append(loss.item())``; none if the
    loop itself brings the ranks' numbers together, nor what ``program``, the code that the loop
    stands in, does so with after it: ``ddp.sum(seen)``.
    """
    nodes = [node for statement in loop.body for node in ast.walk(statement)]
    if any(map(_brings_together, nodes)):
        return []
    found = dict.fromkeys(name for node in nodes for name in _added_to(node))
    brought = set(_brought_together(program, loop.end_lineno or loop.lineno)) if program else set()
    return [name for name in found if name not in brought]


def _brought_together(program: ast.AST, after: int) -> Iterator[str]:
    for node in ast.walk(program):
        if isinstance(node, ast.Call) and node.lineno > after and _brings_together(node):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            parts = (part for value in values for part in ast.walk(value))
            yield from (ast.unparse(part) for part in parts if isinstance(part, ast.expr))


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
