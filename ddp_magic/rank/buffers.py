"""The buffers of models: running statistics, masks, positions; kept equal to rank 0's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ddp_magic.rank import agreement

Slot: TypeAlias = tuple[dict[str, Tensor | None], str]  # whose buffer it is, and its name there


def parts(roots: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Return all modules within some."""
    return (part for root in roots for part in root.modules())


def slots(roots: Iterable[nn.Module]) -> list[Slot]:
    """Return where the buffers of modules are; a buffer may be replaced by another."""
    return [
        (part._buffers, name)
        for part in parts(roots)
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]


def named(roots: Iterable[nn.Module]) -> list[tuple[str, Tensor]]:
    """Return the buffers that can be written, with their names."""
    found = (item for root in roots for item in root.named_buffers())
    return [(name, buffer) for name, buffer in found if _can_be_written(buffer)]


def share(places: Sequence[Slot]) -> None:
    """Give all ranks rank 0's buffers, as DDP does; a collective if there are any.

    Graphs that are still to run backward do not notice.
    """
    found = [owner.get(name) for owner, name in places]
    buffers = [buffer for buffer in found if buffer is not None and _can_be_written(buffer)]
    if buffers:
        with torch.autograd._unsafe_preserve_version_counter(tuple(buffers)):
            agreement.broadcast(buffers)


def _can_be_written(buffer: Tensor) -> bool:
    """Leave out sparse buffers, and expanded ones, where many elements are one in memory."""
    if is_lazy(buffer) or buffer.layout is not torch.strided:
        return False
    return all(step or size < 2 for step, size in zip(buffer.stride(), buffer.shape, strict=True))
