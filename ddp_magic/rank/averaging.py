"""Gradients that are absent, and the mean over ranks of gradients.

A parameter that took no part in a rank's loss has no gradient there; it takes part in the
reduction with minus zero, the exact identity of addition. Where the mean over all ranks is minus
zero in every element, no rank had a gradient, and each goes back to ``None``: optimizers treat
``None`` and zero differently (momentum, weight decay). A rank that did use the parameter
contributes its gradient, and then all ranks keep the mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def fill_absent(parameters: Sequence[Tensor], sparse: frozenset[int]) -> list[Tensor]:
    """Give the parameters without a gradient one that adds nothing; return those.

    Parameters
    ----------
    sparse
        The identities of the parameters whose gradients are sparse tensors.
    """
    absent = [parameter for parameter in parameters if parameter.grad is None]
    for parameter in absent:
        parameter.grad = _nothing(parameter, id(parameter) in sparse)
    return absent


def clear_unused(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Take the gradient off the parameters that got one from no rank; return those.

    Parameters
    ----------
    parameters
        What `fill_absent` returned, after the reduction.
    """
    flags = [_is_nothing(parameter.grad) for parameter in parameters if parameter.grad is not None]
    unused = [p for p, flag in zip(parameters, _to_bools(flags), strict=True) if flag]
    for parameter in unused:
        parameter.grad = None
    return unused


def average_gradients(parameters: Sequence[Tensor]) -> None:
    """Replace each parameter's gradient by its mean over all ranks, in one reduction a dtype."""
    absent = fill_absent(parameters, frozenset())
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        assert gradient is not None  # filled above
        if gradient.is_sparse:
            parameter.grad = gradient = gradient.to_dense()
        kinds.setdefault((gradient.dtype, gradient.device), []).append(gradient)
    for gradients in kinds.values():
        _average(gradients)
    clear_unused(absent)


def averaged(
    gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the means over ranks of gradients that were not put into ``.grad``.

    Parameters
    ----------
    gradients
        One for each parameter; None where it took no part.
    """
    holders = [torch.empty_like(parameter, requires_grad=False) for parameter in parameters]
    for holder, gradient in zip(holders, gradients, strict=True):
        holder.grad = None if gradient is None else gradient.clone()
    average_gradients(holders)
    return [holder.grad for holder in holders]


@torch.no_grad()
def _average(gradients: Sequence[Tensor]) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    flat.div_(dist.get_world_size())
    dist.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def _nothing(parameter: Tensor, sparse: bool) -> Tensor:
    if not sparse:
        return torch.zeros_like(parameter, requires_grad=False).neg_()
    indices = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
    values = torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)


def _to_bools(flags: Sequence[Tensor]) -> list[bool]:
    """Read boolean scalars with one wait for the device."""
    return list(map(bool, torch.stack(list(flags)).tolist())) if flags else []


def _is_nothing(gradient: Tensor) -> Tensor:
    """Return a boolean scalar: no rank added anything."""
    if gradient.is_sparse:
        return torch.tensor(gradient._nnz() == 0, device=gradient.device)
    plain = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    return ((plain == 0) & torch.signbit(plain)).all()
