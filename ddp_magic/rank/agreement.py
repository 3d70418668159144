"""All ranks agree on what they are about to synchronise, before they do.

Building a `DistributedDataParallel` and averaging with it are collectives: a rank that comes alone,
or with another model, would hang or mix up the ranks' tensors. So the ranks first compare a few
numbers, in rounds (`Rounds`) that end even if a rank does not come.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_magic.core.ranks import named
from ddp_magic.errors import ParityError
from ddp_magic.rank.rounds import Rounds, Row

_BROADCAST_BYTES = 250 * 1024 * 1024
_NEW, _KNOWN = 0, 1  # what a row is about: whether every rank is known to have it
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Verdict(enum.Enum):
    """What the ranks hold of the thing that this rank brought."""

    EQUAL = "every rank has it, with the same values"
    DIFFERENT = "every rank has it, with values of its own"
    MISSHAPEN = "every rank has it, of another shape"
    LOCAL = "not every rank has it"


def compare(
    rounds: Rounds, label: str, layout: Sequence[str], tensors: Sequence[Tensor]
) -> Verdict:
    """Compare what the ranks bring under `label`; every rank gets the same verdict on it.

    Ranks that come with different labels do not have the same model: those in the minority
    (between halves, those with the lowest rank, as in ``if rank == 0:``) keep theirs to themselves
    and go on; the others wait for them to come with what all have. Who is there when others have
    ended the cell keeps theirs, too.

    Parameters
    ----------
    rounds
        Where they are compared.
    label
        The name and class of the model.
    layout
        A line for each tensor: name, shape, strides and dtype.
    tensors
        The values.

    Raises
    ------
    CollectiveError
        If a rank has failed instead of coming.
    """
    shape = text_checksum("\n".join(layout))
    mine = [text_checksum(label), _NEW, shape, checksum(tensors)]
    while True:
        rows, absent = _show(rounds, mine)
        labels = [row[0] for row in rows]
        rounds.refuse_if_failed(_agreement_on(label))
        if absent:
            return Verdict.LOCAL
        if len(set(labels)) == 1:
            _refuse_half_changed(label, rows)
            break
        if mine[0] == _yielding(rows):
            return Verdict.LOCAL
    if len({row[2] for row in rows}) > 1:
        return Verdict.MISSHAPEN
    return Verdict.EQUAL if len({row[3] for row in rows}) == 1 else Verdict.DIFFERENT


def meet(rounds: Rounds, label: str) -> None:
    """Wait until every rank is about to average what all of them have under `label`.

    A rank that comes with a model of its own instead keeps that to itself, and is waited for.

    Raises
    ------
    CollectiveError
        If a rank has failed instead of coming.
    ParityError
        If a rank does not come, or comes with something else that all have.
    """
    mine = [text_checksum(label), _KNOWN]
    while True:
        rows, absent = _show(rounds, mine)
        rounds.refuse_if_failed(_agreement_on(label))
        if absent:
            raise ParityError(
                f"{label} is trained here, and {named(absent)} did not come to it: its gradients "
                "cannot be averaged.",
                fix="Train it on every rank, or run the cell with -r on the ranks that train it.",
            )
        others = [rank for rank, row in enumerate(rows) if row[0] != mine[0]]
        if not others:
            return _refuse_half_changed(label, rows)
        known = [rank for rank in others if rows[rank][1] == _KNOWN]
        if known:
            raise ParityError(
                f"{label} is trained on rank {dist.get_rank()} while {named(known)} trains "
                "another model: their gradients would be mixed up.",
                fix="Train the same model on every rank at the same time, or use --no-wrap.",
            )


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
    sums = [_as_integers(tensor).sum(dtype=torch.int64) for tensor in tensors]
    together = len({one.device for one in sums}) == 1  # then the device is waited for once
    return text_checksum(repr(torch.stack(sums).tolist() if together else list(map(int, sums))))


def broadcast(tensors: Sequence[Tensor]) -> None:
    """Give every rank the values of rank 0."""
    if tensors:
        group = dist.group.WORLD
        assert group is not None
        dist._broadcast_coalesced(group, [t.detach() for t in tensors], _BROADCAST_BYTES, 0)


def meet_at_loader(rounds: Rounds) -> None:
    """Wait until every rank is about to read a loader, whose order is rank 0's.

    Raises
    ------
    ParityError
        If a rank ends the cell, or trains something, instead.
    """
    mine = [text_checksum("a loader"), _KNOWN]
    while True:
        rows, absent = _show(rounds, mine)
        rounds.refuse_if_failed("the ranks' agreement on a loader")
        others = [rank for rank, row in enumerate(rows) if row[0] != mine[0]]
        if absent or any(rows[rank][1] == _KNOWN for rank in others):
            raise ParityError(
                f"A loader is read here, and {named(absent or others)} does not read it: its "
                "batches cannot be divided among the ranks.",
                fix="Read it on every rank, or under torch.no_grad(), or run the cell with "
                "--no-shard.",
            )
        if not others:
            return


def _agreement_on(label: str) -> str:
    return f"the ranks' agreement on {label}"


def _show(rounds: Rounds, mine: Row) -> tuple[list[Row], list[int]]:
    """Return the rows of the ranks that came, and the ranks that did not."""
    shown = rounds.exchange(mine)
    return [row for row in shown if row is not None], [r for r, row in enumerate(shown) if not row]


def _refuse_half_changed(label: str, rows: Sequence[Row]) -> None:
    changed = [rank for rank, row in enumerate(rows) if row[1] == _NEW]
    if 0 < len(changed) < len(rows):
        raise ParityError(
            f"The shape of {label}, or which of its parameters train, has changed on "
            f"{named(changed)} alone.",
            fix="Change it on every rank.",
        )


def _yielding(rows: Sequence[Row]) -> int:
    """Return the new label whose ranks are the fewest, or among the fewest has the lowest rank."""
    labels = [row[0] for row in rows]
    new = [row[0] for row in rows if row[1] == _NEW]
    return min(new, key=lambda label: (labels.count(label), labels.index(label)))


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
    flat, size = plain.contiguous().reshape(-1), plain.element_size()
    if flat.numel() * size % 8:
        return flat.view(_INTEGERS[size])
    aligned = flat if flat.storage_offset() * size % 8 == 0 else flat.clone()
    return aligned.view(torch.int64)  # ten times as fast


def _at(lines: Sequence[str], index: int) -> str:
    return f"'{lines[index]}'" if index < len(lines) else "nothing more"
