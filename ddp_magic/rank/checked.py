"""Checksums of all that is kept in step, for `%%ddp --check` (see `ddp_magic.core.checked`).

Parameters and buffers of the models that were attached, in this cell or before. Buffers have rank
0's values since the last backward; a forward in training mode after that changes a BatchNorm's on
each rank, and is found here. Of a DDP of the user's the parameters alone: it brings its buffers
together only as its next forward begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

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


def checksums(registry: Registry, steps: Steps) -> dict[str, Any]:
    """Return those of all models that are not this rank's alone, and of what trains them."""
    models: Sums = {}
    labels: dict[str, str] = {}
    for synced in registry:
        if not synced.local and synced.agreed and synced.values():
            labels[_key(synced)] = synced.label
            models[_key(synced)] = _of_tensors(_tensors(synced))
    for label, ddp in registry.labelled_ddps():
        parameters = (pair for pair in tensors_of(ddp) if peek.is_a(pair[1], nn.Parameter))
        models[label] = _of_tensors(parameters)
    optimizers: Sums = {}
    for key, optimizer, trained in _optimizers(steps):
        labels[key] = (
            f"{peek.class_name(type(optimizer))} of {', '.join(one.label for one in trained)}"
        )
        optimizers[key] = _of_optimizer(optimizer)
    return {"models": models, "optimizers": optimizers, "labels": labels}


def _key(synced: Synced) -> str:
    """Return what tells it on all ranks from whatever else has, or had, its label."""
    return f"round {synced.agreed}"


def _optimizers(steps: Steps) -> Iterator[tuple[str, Optimizer, list[Synced]]]:
    """Yield the optimizers that all ranks have, each with a key and with what it trains.

    Those of the same models are counted from the newest: one that has been replaced may still be
    held on some ranks alone.
    """
    counts: Counter[str] = Counter()
    found = []
    for optimizer, trained in reversed(steps.optimizers()):
        kind = peek.class_name(type(optimizer))
        shared = trained and all(one.agreed and not one.local for one in trained)
        if shared and kind != _SHARDED:
            models = f"{kind} of {', '.join(map(_key, trained))}"
            counts[models] += 1
            found.append((f"{models}, {counts[models]}", optimizer, trained))
    return reversed(found)


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
