"""All ranks agree on what they are about to synchronise, before they do.

Building a `DistributedDataParallel` is a collective: a rank that comes alone, or with another
model, would hang or mix up the ranks' tensors. So the ranks first compare a few numbers.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_magic.errors import ParityError

_BROADCAST_BYTES = 250 * 1024 * 1024
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Verdict(enum.Enum):
    """What the ranks hold of the thing that this rank brought."""

    EQUAL = "every rank has it, with the same values"
    DIFFERENT = "every rank has it, with values of its own"
    MISSHAPEN = "every rank has it, of another shape"
    LOCAL = "not every rank has it"


def compare(label: str, layout: Sequence[str], tensors: Sequence[Tensor]) -> Verdict:
    """Compare what the ranks bring under `label`; every rank gets the same verdict on it.

    Ranks that come with different labels do not have the same model: those in the minority
    (between halves, those with the lowest rank, as in ``if rank == 0:``) keep theirs to themselves
    and go on; the others wait for them to come with what all have.

    Parameters
    ----------
    label
        The name and class of the model.
    layout
        A line for each tensor: name, shape, strides and dtype.
    tensors
        The values.
    """
    mine = [text_checksum(label), text_checksum("\n".join(layout)), checksum(tensors)]
    while True:
        rows = _gather(mine)
        labels = [row[0] for row in rows]
        if len(set(labels)) == 1:
            break
        if mine[0] == _yielding(labels):
            return Verdict.LOCAL
    if len({row[1] for row in rows}) > 1:
        return Verdict.MISSHAPEN
    return Verdict.EQUAL if len({row[2] for row in rows}) == 1 else Verdict.DIFFERENT


def refuse_misshapen(label: str, layout: Sequence[str]) -> None:
    """Raise on every rank, naming the first tensor whose shape differs between ranks.

    Raises
    ------
    ParityError
        Always.
    """
    layouts: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(layouts, list(layout))
    rank, first, other = next(
        (rank, _at(layouts[0], index), _at(other, index))
        for rank, other in enumerate(layouts)
        for index in range(max(len(layouts[0]), len(other)))
        if _at(layouts[0], index) != _at(other, index)
    )
    raise ParityError(
        f"{label} is not the same model on all ranks: rank 0 has {first}, rank {rank} has {other}.",
        fix="Build it from the same data on every rank (a vocabulary from the whole data set, "
        "not from a shard), or run the cell with --no-wrap.",
    )


def describe(named: Sequence[tuple[str, Tensor]]) -> list[str]:
    """Return a line for each tensor that is the same on ranks which can exchange it."""
    return [f"{name} {tuple(t.shape)} {t.stride()} {t.dtype} {t.device.type}" for name, t in named]


def text_checksum(text: str) -> int:
    """Return a number that is the same for the same text in every process."""
    return zlib.crc32(text.encode())


def checksum(tensors: Sequence[Tensor]) -> int:
    """Return a number that tells whether tensors are bitwise equal (an order-blind sum each)."""
    sums = [int(_as_integers(tensor).sum(dtype=torch.int64)) for tensor in tensors]
    return text_checksum(repr(sums))


def broadcast(tensors: Sequence[Tensor]) -> None:
    """Give every rank the values of rank 0."""
    if tensors:
        group = dist.group.WORLD
        assert group is not None
        dist._broadcast_coalesced(group, [t.detach() for t in tensors], _BROADCAST_BYTES, 0)


def _yielding(labels: Sequence[int]) -> int:
    """Return the label whose ranks are the fewest, or among the fewest has the lowest rank."""
    return min(labels, key=lambda label: (labels.count(label), labels.index(label)))


def _gather(numbers: Sequence[int]) -> list[list[int]]:
    mine = torch.tensor(numbers, dtype=torch.int64, device=control_device())
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return [row.tolist() for row in rows]


def control_device() -> torch.device:
    """Return a device whose tensors the default group can exchange; the CPU if it can."""
    if "cpu:" in dist.get_backend_config():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _as_integers(tensor: Tensor) -> Tensor:
    plain = tensor.detach()
    if plain.is_sparse:
        plain = plain.to_dense()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    return plain.contiguous().reshape(-1).view(_INTEGERS[plain.element_size()])


def _at(lines: Sequence[str], index: int) -> str:
    return f"'{lines[index]}'" if index < len(lines) else "nothing more"
