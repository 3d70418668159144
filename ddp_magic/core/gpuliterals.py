"""The first GPU, named literally in code for one device, is each rank's own."""

from __future__ import annotations

import ast
import sys
from typing import Final

_FIRST: Final = "cuda:0"
_ON_A_DEVICE: Final = ("cuda", "to")  # methods of tensors and modules
_OF_CUDA: Final = ("set_device", "device")
_NOWHERE: Final = (sys.maxsize, "")
_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def own_gpu(tree: ast.Module, index: int) -> tuple[ast.Module, list[int]]:
    """Let code that names GPU 0 mean GPU ``index``.

    Parameters
    ----------
    tree
        Parsed code; it is changed in place.
    index
        The GPU of this rank.

    Returns
    -------
    tuple
        The tree, and the sorted numbers of the lines where something was replaced.
    """
    replacer = _Replacer(index)
    replacer.visit(tree)
    return tree, sorted(replacer.lines)


class _Replacer(ast.NodeTransformer):
    """Replaces the constants that are the first GPU where they stand, at their own location."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.lines: set[int] = set()

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit what is below a node; a docstring is no code."""
        if not isinstance(node, _DOCUMENTED) or ast.get_docstring(node, clean=False) is None:
            return super().generic_visit(node)
        docstring, node.body = node.body[0], node.body[1:]
        super().generic_visit(node)
        node.body.insert(0, docstring)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        """Replace ``"cuda:0"``."""
        return self._at(node, f"cuda:{self._index}") if node.value == _FIRST else node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Replace the 0 of calls that take the number of a GPU."""
        self.generic_visit(node)
        place, name = _number_argument(node)
        if len(node.args) > place:
            node.args[place] = self._number(node.args[place])
        for keyword in node.keywords:
            if keyword.arg == "device_ids":
                self._only_number(keyword.value)
            elif keyword.arg in ("output_device", name):
                keyword.value = self._number(keyword.value)
        return node

    def _only_number(self, value: ast.expr) -> None:
        if isinstance(value, (ast.List, ast.Tuple)) and len(value.elts) == 1:
            value.elts[0] = self._number(value.elts[0])

    def _number(self, value: ast.expr) -> ast.expr:
        is_zero = isinstance(value, ast.Constant) and type(value.value) is int and not value.value
        return self._at(value, self._index) if is_zero else value

    def _at(self, node: ast.expr, value: str | int) -> ast.Constant:
        self.lines.add(node.lineno)
        return ast.copy_location(ast.Constant(value), node)


def _number_argument(call: ast.Call) -> tuple[int, str]:
    """Return at which place a call takes the number of a GPU, and by which name."""
    match call:
        case ast.Call(
            func=ast.Attribute(value=ast.Name("torch"), attr="device"),
            args=[ast.Constant("cuda"), *_],
        ):
            return 1, "index"
        case ast.Call(func=ast.Attribute(value=ast.Name("torch"), attr="device")):
            return 0, "device"
        case ast.Call(
            func=ast.Attribute(value=ast.Attribute(ast.Name("torch"), "cuda"), attr=name)
        ):
            return (0, "device") if name in _OF_CUDA else _NOWHERE
        case ast.Call(func=ast.Attribute(attr=name)) if name in _ON_A_DEVICE:
            return 0, "device"
    return _NOWHERE
