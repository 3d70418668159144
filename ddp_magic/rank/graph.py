"""Which tensors a backward pass will reach, read from the autograd graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge


def leaves(roots: Any) -> list[Tensor]:
    """Return the leaf tensors whose ``.grad`` a backward from `roots` would add to.

    Parameters
    ----------
    roots
        What ``torch.autograd.backward`` takes first: a tensor, a gradient edge, or several.
    """
    found: dict[int, Tensor] = {}
    pending: list[Any] = []
    for root in roots if _is_several(roots) else (roots,):
        if isinstance(root, Tensor) and root.grad_fn is None:
            found.setdefault(id(root), root)
        else:
            pending.append(root.node if isinstance(root, GradientEdge) else root.grad_fn)
    seen = set(pending)
    while pending:
        node = pending.pop()
        if type(node).__name__ == "AccumulateGrad":
            found.setdefault(id(node.variable), node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
    return [leaf for leaf in found.values() if leaf.requires_grad]


def _is_several(roots: Any) -> bool:
    return isinstance(roots, Iterable) and not isinstance(roots, (Tensor, GradientEdge))
