"""What a loop adds up batch by batch."""

from __future__ import annotations

import ast

import pytest

from ddp_magic.core.totals import totals


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("total += loss.item()", ["total"]),
        ("total += loss.item() * len(x); seen += x.size(0)", ["total", "seen"]),
        ("correct += (out.argmax(1) == y).sum()", ["correct"]),
        ("self.total += float(loss)", ["self.total"]),
        ("stats['loss'] += loss.detach()", ["stats['loss']"]),
        ("losses.append(loss.item())", ["losses"]),
        ("if step % 10 == 0:\n        losses.append(loss.item())", ["losses"]),
        ("step += 1", []),
        ("loss += penalty", []),
        ("total -= loss.item()", []),
        ("names.append('x')", []),
        ("total += ddp.sum(loss.item())", []),
        ("dist.all_reduce(loss); total += loss.item()", []),
    ],
)
def test_totals(body: str, found: list[str]) -> None:
    loop = ast.parse(f"for x, y in loader:\n    {body}").body[0]
    assert isinstance(loop, ast.For)
    assert totals(loop) == found


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ("print(ddp.sum(seen))", ["losses"]),
        ("mean = ddp.mean(torch.tensor(losses)) / ddp.sum(value=seen)", []),
        ("def report():\n    dist.all_reduce(seen)", ["losses"]),
        ("print(sum(losses) / seen)", ["losses", "seen"]),
    ],
)
def test_what_is_brought_together_after_the_loop_is_not_told(after: str, found: list[str]) -> None:
    loop = "for x, y in loader:\n    losses.append(loss.item())\n    seen += len(x)\n"
    program = ast.parse("seen = ddp.sum(losses)\n" + loop + after)
    (for_loop,) = (node for node in program.body if isinstance(node, ast.For))
    assert totals(for_loop, program) == found
