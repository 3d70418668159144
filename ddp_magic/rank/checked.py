"""Checksums of all that is kept in step, for `%%ddp --check` (see `ddp_magic.core.checked`).

Parameters and buffers of the models that were attached, in this cell or before. Buffers have rank
0's values since the last backward; a forward in training mode after that changes a BatchNorm's on
each rank, and is found here. Of a DDP of the user's the parameters alone: it brings its buffers
together only as its next forward begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_magic.core.checked import OF_BUFFER
from ddp_magic.core.parts import shown
from ddp_magic.rank import peek
from ddp_magic.rank.attachment import Attachment
from ddp_magic.rank.flat import FlatTensor, digest, digests, why_unreadable
from ddp_magic.rank.loose import LooseTensors
from ddp_magic.rank.owners import managed_parameters
from ddp_magic.rank.parts import Limits, Taken, tensors_of
from ddp_magic.rank.registry import Registry, Synced
from ddp_magic.rank.steps import Steps

_SHARDED = "ZeroRedundancyOptimizer"  # each rank has a part of its state

Sums = dict[str, dict[str, str]]


def checksums(registry: Registry, steps: Steps) -> dict[str, Sums]:
    """Return those of all models that are not this rank's alone, and of what trains them."""
    models: Sums = {}
    optimizers: Sums = {}
    for synced in registry:
        if not synced.local and synced.values():
            models[_free(synced.label, models)] = _of_tensors(_tensors(synced))
    for number, ddp in enumerate(registry.ordered_ddps()):
        parameters = (pair for pair in tensors_of(ddp) if peek.is_a(pair[1], nn.Parameter))
        models[f"DDP({type(ddp.module).__name__}) number {number + 1}"] = _of_tensors(parameters)
    for optimizer, trained in steps.optimizers():
        if trained and not any(synced.local for synced in trained):
            kind = peek.class_name(type(optimizer))
            labels = ", ".join(synced.label for synced in trained)
            if kind != _SHARDED:
                optimizers[_free(f"{kind} of {labels}", optimizers)] = _of_optimizer(optimizer)
    return {"models": models, "optimizers": optimizers}


def _tensors(synced: Synced) -> Iterator[tuple[str, Tensor]]:
    if isinstance(synced, LooseTensors):
        yield from synced.named_values()
        return
    assert isinstance(synced, Attachment)
    roots = synced.named_roots()
    others = managed_parameters([root for _, root in roots])
    for of_user, root in roots:
        prefix = f"{of_user}." if len(roots) > 1 else ""
        for name, tensor in tensors_of(root):
            if id(tensor) not in others:
                of_buffer = "" if peek.is_a(tensor, nn.Parameter) else OF_BUFFER
                yield f"{prefix}{name}{of_buffer}", tensor


def _of_tensors(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    sums = {}
    for name, tensor in tensors:
        if not why_unreadable(tensor):
            flat = FlatTensor(tensor)
            shape = f"{flat.shape} {flat.dtype}".encode()
            sums[name] = digest(shape + digests(flat)).hex()
    return sums


def _of_optimizer(optimizer: Optimizer) -> dict[str, str]:
    return {
        shown(part.path): digest(part.digest).hex()
        for part in Taken(optimizer, Limits())
        if part.digest
    }


def _free(label: str, taken: Sums) -> str:
    """Return the label, numbered if it has been given already."""
    number = sum(one.partition(" number ")[0] == label for one in taken)
    return f"{label} number {number + 1}" if number else label
