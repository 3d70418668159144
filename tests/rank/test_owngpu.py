"""Code that names the first GPU, on a rank that has another."""

from __future__ import annotations

import ast
from typing import Any

from ddp_magic.rank.owngpu import OwnGpu
from tests.rank.harness import ListReport


def test_a_cell_takes_the_ranks_own() -> None:
    report = ListReport()
    cell = "import torch\nfirst = torch.device('cuda:0')\nother = 'cuda:1', 'cuda', 0"
    tree = OwnGpu(3, report).visit(ast.parse(cell))
    namespace: dict[str, Any] = {}
    exec(compile(tree, "cell", "exec"), namespace)
    assert str(namespace["first"]) == "cuda:3"
    assert namespace["other"] == ("cuda:1", "cuda", 0)
    assert list(report.notices.values()) == ["`cuda:0` in line 2 is taken as each rank's own GPU"]


def test_on_the_first_rank_it_is_said_as_well() -> None:
    report = ListReport()
    tree = OwnGpu(0, report).visit(ast.parse("x.to('cuda:0')"))
    assert ast.unparse(tree) == "x.to('cuda:0')"
    assert len(report.notices) == 1
