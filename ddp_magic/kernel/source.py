"""Looks at a cell's source before any rank is asked to run it."""

from __future__ import annotations

import ast
from pathlib import Path

from IPython.core.getipython import get_ipython
from IPython.core.inputtransformer2 import TransformerManager

from ddp_magic.errors import UsageError


def check_syntax(code: str, header: str = "") -> None:
    """Raise `SyntaxError`, with the line of the whole cell, if ``code`` cannot be compiled.

    Parameters
    ----------
    code
        A cell's body: Python with IPython's magics, ``!`` and top-level ``await``.
    header
        The lines that stand above the body in its cell.
    """
    above = "\n" * header.count("\n")
    try:
        _compile(above + code)  # most cells are plain Python, and to transform one takes longer
    except SyntaxError:
        shell = get_ipython()
        transform = shell.transform_cell if shell else TransformerManager().transform_cell
        _compile(above + transform(code))


def check_program(path: str) -> None:
    """Raise `SyntaxError` if a script cannot be compiled, `UsageError` if it is none."""
    source = Path(path).read_bytes()
    if b"\0" in source:
        raise UsageError(f"%ddp run {path}: not a Python script.")
    ast.parse(source, path)


def _compile(source: str) -> None:
    compile(source, "<ddp cell>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
