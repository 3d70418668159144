"""Is a loss the mean over its samples, each with the same weight?

Only then is the mean over ranks of their gradients that of the whole batch. The sum over a part is
smaller than over the batch, and averaging does not make up for it. And where samples have weights,
or some are left out, those of each rank's part add up to something else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

# Ops of a loss that change neither which samples it is made of nor how it weighs them.
_TRANSPARENT: Final = (
    "Add", "Sub", "Mul", "Neg", "ToCopy", "View", "ReshapeAlias", "UnsafeView", "Squeeze",
    "Unsqueeze", "Clone", "Stack", "Sqrt",
)  # fmt: skip
_DEPTH: Final = 30
_SUMS: Final = 2  # in torch's coding of reductions: none, mean, sum
_NONE: Final = 0


@dataclass(frozen=True)
class Cut:
    """A batch of ``batch_size`` samples, of which a rank has ``part_size``."""

    part_size: int
    batch_size: int


def sums_over_samples(loss: torch.Tensor, cut: Cut) -> bool:
    """Return whether a term of the loss is a sum over the part, as its graph shows.

    Read from the operations' records alone, so a sum in a function of the user's own, or one that
    is divided by something else than a number of samples, goes unnoticed.
    """
    return _sums(loss.grad_fn, cut, _DEPTH)


def weighs_samples(loss: torch.Tensor, cut: Cut) -> bool:
    """Return whether a term of the loss is a mean in which samples count differently.

    Class weights, an ``ignore_index`` that occurs, rows chosen by a mask or by their value.
    """
    return any(_weighs(node, cut) for node in _terms(loss.grad_fn, _DEPTH))


def _terms(node: Any, depth: int) -> Iterator[Any]:
    if node is None or depth == 0:
        return
    yield node
    if _kind(node) in ("Sum", "Mean", "Div", *_TRANSPARENT):
        for child in _children(node):
            yield from _terms(child, depth - 1)


def _weighs(node: Any, cut: Cut) -> bool:
    if hasattr(node, "_saved_total_weight"):
        mean = node._saved_reduction not in (_NONE, _SUMS)
        return mean and node._saved_total_weight.item() != node._saved_target.numel()
    kind, below = _kind(node), [_kind(child) for child in _children(node)]
    if kind == "Mean":
        return below[:1] in (["Index"], ["MaskedSelect"], ["Topk"])
    by_batch = kind == "Div" and _keeps_a_sum(node, cut)
    return kind == "Div" and below[:1] == ["Sum"] and not by_batch and _divides_by_weights(node)


def _divides_by_weights(division: Any) -> bool:
    """Tell whether a sum is divided by something else than a number of its rows or elements."""
    divisor, total = division._saved_other, next(_children(division))
    if divisor is None or divisor.numel() != 1:
        return False
    count = math.prod(total._saved_self_sym_sizes) / divisor.item()
    return not float(count).is_integer()


def _sums(node: Any, cut: Cut, depth: int) -> bool:
    if node is None or depth == 0:
        return False
    kind = _kind(node)
    reduction = getattr(node, "_saved_reduction", _NONE)
    if reduction != _NONE:
        return bool(reduction == _SUMS)
    if kind in ("Sum", "Mean") and cut.part_size in _reduced(node):
        return kind == "Sum" and not _is_of_parameter(node)
    if kind == "Div" and not _keeps_a_sum(node, cut):
        return False
    known = kind in ("Sum", "Mean", "Div", *_TRANSPARENT)
    return known and any(_sums(child, cut, depth - 1) for child in _children(node))


def _kind(node: Any) -> str:
    return str(node.name()).partition("Backward")[0]


def _children(node: Any) -> Iterator[Any]:
    return (child for child, _ in node.next_functions if child is not None)


def _reduced(node: Any) -> Sequence[int]:
    """Return the sizes that a sum or mean does away with; of all dimensions, the first alone."""
    sizes = node._saved_self_sym_sizes
    if not hasattr(node, "_saved_dim"):
        return sizes[:1]
    dims = node._saved_dim or range(len(sizes))
    # A negative dimension is recorded as its unsigned 64-bit pattern.
    return [sizes[dim - 2**64 if dim >= 2**63 else dim] for dim in dims]


def _keeps_a_sum(division: Any, cut: Cut) -> bool:
    """Tell whether what was divided is still a sum: not by the samples that were summed up."""
    divisor = getattr(division, "_saved_other", None)
    if divisor is None or divisor.numel() != 1 or not divisor.is_cpu:
        return False
    return divisor.item() == cut.batch_size


def _is_of_parameter(node: Any) -> bool:
    """Tell whether a parameter itself is summed up (a penalty), not what came of samples."""
    sizes = tuple(node._saved_self_sym_sizes)
    while len(children := list(_children(node))) == 1:
        node = children[0]
        if hasattr(node, "variable"):
            return tuple(node.variable.shape) == sizes
    return False
