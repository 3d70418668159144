"""Rank 0's word: what all ranks must hold alike to draw the same batches.

Everything here is a collective on the default process group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist

from ddp_magic.rank.agreement import control_device

T = TypeVar("T")

_END: Final = object()
_ROW_SIZE: Final = 512  # numbers in the one small tensor that most batches of indices travel in
_ENDED, _INTEGER, _INTEGERS, _OTHER = range(4)


def from_rank_0(value: T) -> T:
    """Return rank 0's ``value`` (anything that pickles) on every rank."""
    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=0)
    shared: T = box[0]
    return shared


def alike_on_all_ranks(value: object) -> bool:
    """Return on every rank whether the ranks' values have the same ``repr``."""
    digest = hashlib.blake2b(repr(value).encode(), digest_size=16).digest()
    digests: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, digest)
    return len(set(digests)) == 1


@contextmanager
def generator_of_rank_0(generator: torch.Generator) -> Iterator[None]:
    """Let every rank draw what rank 0 draws.

    Where the generators agree, all simply draw. The process-wide generator of a rank that has
    drifted gets its own state back, for its owner may want it different; a generator made for a
    loader stays in step with rank 0's.
    """
    own = generator.get_state()
    shared = _tensor_from_rank_0(own)
    drifted = not torch.equal(own, shared)
    if drifted:
        generator.set_state(shared)
    try:
        yield
    finally:
        if drifted and generator is torch.default_generator:
            generator.set_state(own)


def drawn_by_rank_0(indices: Iterator[Any]) -> Iterator[Any]:
    """Yield what rank 0 draws; the others draw too, so that their random numbers keep pace."""
    while True:
        drawn = next(indices, _END)
        row = _tensor_from_rank_0(torch.tensor(_as_row(drawn)))
        kind, size, *numbers = row.tolist()
        if kind == _ENDED:
            return
        if kind == _OTHER:
            yield from_rank_0(None if drawn is _END else drawn)
        else:
            yield numbers[0] if kind == _INTEGER else numbers[:size]


def _as_row(drawn: Any) -> list[int]:
    """Return a kind, a size and numbers; what does not go into a row has to be sent after it."""
    if drawn is _END:
        head = [_ENDED, 0]
    elif type(drawn) is int:
        head = [_INTEGER, 1, drawn]
    elif type(drawn) is list and len(drawn) <= _ROW_SIZE - 2 and {*map(type, drawn)} <= {int}:
        head = [_INTEGERS, len(drawn), *drawn]
    else:
        head = [_OTHER, 0]
    return head + [0] * (_ROW_SIZE - len(head))


def _tensor_from_rank_0(own: torch.Tensor) -> torch.Tensor:
    shared = own.to(control_device(), copy=True)
    dist.broadcast(shared, src=0)
    return shared.cpu()
