"""Tells whether tensors are finite, and takes a closer look at one that is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ddp_magic.core.anomaly import Census

_PLAIN = (Tensor, nn.Parameter, nn.Buffer)
# Others (of eight bits, say) cannot be asked.
_DTYPES = frozenset(
    {
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    }
)
_DEPTH = 4  # of containers within containers
_MOST = 200  # of the items of one


def tensors_in(value: Any, depth: int = _DEPTH) -> Iterator[Tensor]:
    """Yield the tensors that a call is given or returns, in containers too."""
    if isinstance(value, Tensor):
        yield value
    elif depth:
        for item in islice(_items(value), _MOST):
            yield from tensors_in(item, depth - 1)


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Tell whether all values are finite; those of tensors that cannot be asked count as finite.

    Waits once for each device.
    """
    sums: dict[torch.device, list[Tensor]] = {}
    suspects: list[Tensor] = []
    for tensor in filter(_can_be_asked, tensors):
        values = _values(tensor)
        # One pass, and no copy: what is not finite makes the sum so. A sum may overflow, though.
        sums.setdefault(values.device, []).append(values.sum().isfinite())
        suspects.append(values)
    if all(bool(torch.stack(some).all()) for some in sums.values()):
        return True
    return all(bool(values.isfinite().all()) for values in suspects)


def census(tensor: Tensor) -> Census:
    """Count what a tensor holds; one that cannot be asked counts as finite."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if not _can_be_asked(tensor):
        return Census(shape, dtype)
    values = _values(tensor)
    finite = values.isfinite()
    good = values[finite]
    ordered = bool(good.numel()) and not values.is_complex()
    is_whole = tensor.layout is torch.strided and tensor.dim() > 0
    bad = (~finite).flatten(1).any(1) if is_whole and tensor.dim() > 1 else ~finite
    return Census(
        shape,
        dtype,
        nan=int(values.isnan().sum()),
        infinite=int(values.isinf().sum()),
        low=float(good.min()) if ordered else None,
        high=float(good.max()) if ordered else None,
        elements=tuple(bad.nonzero().flatten().tolist()) if is_whole else (),
    )


def floating(value: Any) -> list[Tensor]:
    """Return the tensors in a value that can be asked whether they are finite."""
    return [tensor for tensor in tensors_in(value) if _can_be_asked(tensor)]


def _can_be_asked(tensor: Tensor) -> bool:
    # Of another class, to read a value may be a collective, or impossible.
    if type(tensor) not in _PLAIN or tensor.dtype not in _DTYPES or tensor.is_meta:
        return False
    if tensor.layout not in (torch.strided, torch.sparse_coo) or not tensor.numel():
        return False
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _values(tensor: Tensor) -> Tensor:
    detached = tensor.detach()
    return detached if detached.layout is torch.strided else detached._values()


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return dict.values(value)  # not the user's own
    if isinstance(value, list):
        return list.__iter__(value)
    if isinstance(value, tuple):
        return tuple.__iter__(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return list(getattr(value, "__dict__", {}).values())
    return ()
