"""The optimizers, and that each step uses gradients which were averaged since the last one."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from ddp_magic.rank.agreement import control_device
from ddp_magic.rank.registry import Registry, Synced

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class _Watch:
    """What an optimizer steps, and how often that had been averaged at its last step."""

    synced: Synced
    reduces: int


@dataclass
class _Entry:
    size: int
    watches: list[_Watch]


class Steps:
    """What each optimizer steps, of what is kept in step over the ranks."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._entries: weakref.WeakKeyDictionary[Optimizer, _Entry] = weakref.WeakKeyDictionary()

    @property
    def has_optimizers(self) -> bool:
        """Whether there is any."""
        return bool(self._entries)

    def enter(self, optimizer: Optimizer, frame: FrameType | None) -> list[Synced]:
        """Take up an optimizer with its present parameters; return what nothing had marked."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        new = self._registry.mark(parameters, frame)
        identities = [id(parameter) for parameter in parameters]
        covering = [s for s in self._registry if any(map(s.covers, identities))]
        watches = [_Watch(synced, synced.reduces) for synced in covering]
        self._entries[optimizer] = _Entry(len(parameters), watches)
        return new

    def knows(self, optimizer: Optimizer) -> bool:
        """Tell whether it was taken up with the parameters that it has now."""
        entry = self._entries.get(optimizer)
        return entry is not None and entry.size == sum(
            len(group["params"]) for group in optimizer.param_groups
        )

    def pending(self, optimizer: Optimizer) -> Iterator[Synced]:
        """Yield what was not averaged since its last step, and note that it steps now."""
        for watch in self._entries[optimizer].watches:
            synced = watch.synced
            due = synced.reduces == watch.reduces or synced.fired or synced.extra
            if due and not synced.local:
                yield synced
            watch.reduces = synced.reduces

    def stepped_by(self, optimizer: Optimizer) -> list[Synced]:
        """Return what this optimizer steps."""
        return [watch.synced for watch in self._entries[optimizer].watches]

    def optimizers_of(self, synced: Synced) -> list[Optimizer]:
        """Return the optimizers that step it, in the order in which they were made."""
        return [o for o in list(self._entries) if synced in self.stepped_by(o)]

    def are_shared(self, optimizer: Optimizer) -> bool:
        """Tell whether what it steps is kept in step over the ranks."""
        return optimizer in self._entries and any(not s.local for s in self.stepped_by(optimizer))

    def share_state(self, synced: Synced) -> None:
        """Give all ranks rank 0's optimizer state with its values; a collective."""
        synced.took_values = False
        for optimizer in self.optimizers_of(synced):
            box: list[Any] = [optimizer.state_dict() if dist.get_rank() == 0 else None]
            dist.broadcast_object_list(box, src=0)
            optimizer.load_state_dict(box[0])

    def clear(self) -> None:
        """Forget all; an optimizer is taken up again as it steps."""
        self._entries.clear()


def with_mean_loss(
    optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """Let a line search see the loss of the whole batch, or the ranks would part in it.

    Returns the arguments for ``step`` (the optimizer is the first), or None to leave them.
    """
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    ignores_loss = type(optimizer).__module__.startswith("torch.optim.")
    if closure is None or (ignores_loss and not isinstance(optimizer, torch.optim.LBFGS)):
        return None
    averaged = _averaging(closure)
    if len(args) > 1:
        return (args[0], averaged, *args[2:]), kwargs
    return args, {**kwargs, "closure": averaged}


def _averaging(closure: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(closure)
    def mean_loss() -> Any:
        loss = closure()
        return None if loss is None else mean_over_ranks(loss)

    return mean_loss


def mean_over_ranks(value: Any) -> Tensor:
    """Return the mean of a number, or of a tensor on its device; a collective."""
    mean = torch.as_tensor(value).detach() / dist.get_world_size()
    mean = mean if isinstance(value, Tensor) else mean.to(control_device())
    dist.all_reduce(mean)
    return mean
