"""The optimizers, and that each step uses gradients which were averaged since the last one."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
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
    """What an optimizer steps, and what had been done to that at its last step.

    How often it had been averaged, and how often it had taken over rank 0's values.
    """

    synced: Synced
    reduces: int
    takes: int = 0


@dataclass
class _Entry:
    identities: list[int]
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

    def optimizers(self) -> list[tuple[Optimizer, list[Synced]]]:
        """Return the optimizers in the order in which they came, with what each of them steps."""
        return [(one, [w.synced for w in entry.watches]) for one, entry in self._entries.items()]

    def enter(
        self, optimizer: Optimizer, frame: FrameType | None, *, steps: bool = False
    ) -> list[Synced]:
        """Take up an optimizer with its present parameters; return what nothing had marked.

        If it ``steps`` already, what was ever averaged was so for this step.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        new = self._registry.mark(parameters, frame)
        identities = [id(parameter) for parameter in parameters]
        covering = [s for s in self._registry if any(map(s.covers, identities))]
        watches = [_Watch(s, -1 if steps and s.reduces else s.reduces) for s in covering]
        self._entries[optimizer] = _Entry(identities, watches)
        return new

    def knows(self, optimizer: Optimizer) -> bool:
        """Tell whether it was taken up with the parameters that it has now."""
        entry = self._entries.get(optimizer)
        groups = [group["params"] for group in optimizer.param_groups]
        return entry is not None and entry.identities == [*map(id, chain(*groups))]

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

    def forget(self, gone: Sequence[Synced]) -> None:
        """Have the optimizers of what is not kept in step any more taken up anew."""
        for optimizer in [o for one in gone for o in self.optimizers_of(one)]:
            self._entries.pop(optimizer, None)

    def step_all(self, some: Iterable[Synced]) -> bool:
        """Tell whether optimizers step all of these; what none does, is trained by hand."""
        stepped = [watch.synced for entry in self._entries.values() for watch in entry.watches]
        return all(one in stepped for one in some)

    def are_shared(self, optimizer: Optimizer) -> bool:
        """Tell whether what it steps is kept in step over the ranks."""
        return optimizer in self._entries and any(not s.local for s in self.stepped_by(optimizer))

    def has_stale_state(self, optimizer: Optimizer) -> bool:
        """Tell whether values were taken over from rank 0 that its state does not go with."""
        watches = self._entries[optimizer].watches
        return any(one.synced.takes > one.takes and not one.synced.local for one in watches)

    def share_state(self, optimizer: Optimizer) -> None:
        """Give all ranks rank 0's state of an optimizer; a collective."""
        box: list[Any] = [optimizer.state_dict() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(box, src=0)
        optimizer.load_state_dict(box[0])
        self.has_state(optimizer)

    def has_state(self, optimizer: Optimizer) -> None:
        """Note that an optimizer's state goes with the values that there are."""
        for watch in self._entries[optimizer].watches:
            watch.takes = watch.synced.takes

    def forget_idle(self) -> None:
        """Have optimizers that step nothing kept in step taken up anew."""
        for optimizer in [o for o, entry in self._entries.items() if not entry.watches]:
            del self._entries[optimizer]

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
