"""Code that names the first GPU, ``"cuda:0"``, means on each rank that rank's own."""

from __future__ import annotations

import ast

from ddp_magic.core.gpuliterals import own_gpu
from ddp_magic.rank.report import Report


class OwnGpu(ast.NodeTransformer):
    """Changes the code of cells and scripts, as one of IPython's ``ast_transformers``.

    Parameters
    ----------
    index
        Of this rank's GPU.
    report
        Where it is said.
    """

    def __init__(self, index: int, report: Report) -> None:
        self._index = index
        self._report = report

    def visit(self, node: ast.AST) -> ast.Module:
        """Change a cell's whole tree."""
        assert isinstance(node, ast.Module)
        tree, lines = own_gpu(node, self._index)
        if lines:
            where = ", ".join(map(str, lines))
            text = f"`cuda:0` in line {where} is taken as each rank's own GPU"
            self._report.notice(f"owngpu:{where}", text)
        return tree
