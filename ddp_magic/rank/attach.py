"""Unchanged single-device code, trained in step on all ranks.

A model is *marked* as an optimizer takes its parameters, or as a ``backward()`` reaches parameters
that nothing has marked; from then on its parameters tell which of them get gradients. As a
backward ends, each model that it reached is reduced (`Attachment.reduce`), before anything can
read the gradients: clipping, scaling, a step written by hand. Its reducer is built at the first
backward, when the model has got its final shape. Before each ``optimizer.step()`` a last look
makes sure that what it will use was averaged since the one before.

Every rank takes each of these decisions by itself, from what is the same on all ranks: the code
that runs. Where ranks differ (a parameter, or a whole model, that only some ranks use), those
that lack gradients take part in the reduction with none.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ddp_magic.errors import ParityError, UsageError
from ddp_magic.rank.agreement import meet_at_loader
from ddp_magic.rank.attachment import Attachment
from ddp_magic.rank.averaging import average_gradients
from ddp_magic.rank.byhand import ByHand
from ddp_magic.rank.changes import Changes
from ddp_magic.rank.checked import checksums
from ddp_magic.rank.graph import leaves
from ddp_magic.rank.loose import LooseTensors
from ddp_magic.rank.meetings import Meetings
from ddp_magic.rank.owners import is_managed, look_around, look_away, user_frame
from ddp_magic.rank.patching import Patches
from ddp_magic.rank.reducer import Holder
from ddp_magic.rank.registry import Registry, Synced
from ddp_magic.rank.rejoin import rejoin
from ddp_magic.rank.report import Report
from ddp_magic.rank.rounds import Rounds
from ddp_magic.rank.sites import Sites
from ddp_magic.rank.steps import Arguments, Steps, with_mean_loss

# What these would allow works without them; devices are those of the parameters.
_NEEDLESS = {"find_unused_parameters", "static_graph", "broadcast_buffers", "device_ids"}


class Attacher:
    """Keeps the models and tensors that this rank trains in step with the other ranks'.

    Parameters
    ----------
    report
        Where to say what was done.
    meetings
        Where ranks wait for this one, if they wait for a collective of the user's.
    """

    def __init__(self, report: Report, meetings: Meetings | None = None) -> None:
        self._report = report
        self._rounds = Rounds(meetings.is_needed_by if meetings else None)
        self._registry = Registry(self._rounds, report)
        self._sites = Sites()
        self._steps = Steps(self._registry)
        self._patches = Patches()
        self._changes = Changes()
        self._by_hand = ByHand(self._registry, self._steps, self._averages_now)
        self._step_hook: RemovableHandle | None = None
        self._installed = False
        self._active = True
        self._alone = True
        self._in_backward = False
        self._nested = False

    # --- the session's side

    @property
    def active(self) -> bool:
        """Whether models are kept in step; if not, nothing here issues a collective."""
        return self._active and self._installed

    @active.setter
    def active(self, active: bool) -> None:
        if self._active and not active:
            self._drop_all()  # an armed reducer would reduce
        self._active = active

    def begin_cell(self, number: int) -> None:
        """Begin a cell that all ranks run; ``number`` is the same on all of them, and new."""
        self._rounds.begin_cell(number)
        self._sites.clear()
        self._steps.forget(self._registry.forget_local())

    def end_cell(self, *, failed: bool) -> None:
        """Let ranks that wait for this one in the cell know that it does not come."""
        if self._installed and not self._alone:
            self._rounds.end_cell(failed)

    def free(self) -> None:
        """End what this rank waits for without a collective; may be called on any thread."""
        self._rounds.freed = True

    @property
    def unmet(self) -> str:
        """The agreement of this cell that ranks which failed did not come to; or ``""``."""
        return self._rounds.unmet

    def awaits(self) -> int | None:
        """Return the rank that this one waits for to agree with it; may be called on any thread."""
        return self._rounds.awaits

    def install(self) -> None:
        """Hook into optimizers, ``backward`` and DDP. The process group must be there."""
        self._alone = dist.get_world_size() == 1
        self._installed = True
        self._patches.replace(torch.autograd, "backward", self._patched_backward)
        self._patches.replace(Optimizer, "add_param_group", self._patched_add_param_group)
        self._patches.replace(DistributedDataParallel, "__init__", self._patched_ddp_init)
        self._patches.replace(
            Tensor, "register_post_accumulate_grad_hook", self._patched_hook_registration
        )
        self._step_hook = register_optimizer_step_pre_hook(self._before_step)
        self._changes.install()
        self._by_hand.install()

    def uninstall(self) -> None:
        """Undo everything: no hook is left on a model, a tensor or torch."""
        self._installed = False
        if self._step_hook is not None:
            self._step_hook.remove()
        self._by_hand.uninstall()
        self._changes.uninstall()
        self._patches.undo()
        self._registry.clear()
        self._steps.clear()

    def on_new_group(self, former: Any = None) -> None:
        """Take up the process group that there is now: reducers are built anew on it.

        Parameters
        ----------
        former
            The group that has gone; the user's own DDP objects on it move to the new one.
        """
        self._alone = dist.get_world_size() == 1
        self._drop_all()
        for ddp in list(self._registry.user_ddps):
            if former is not None and ddp.process_group is former:
                ddp._update_process_group(dist.group.WORLD)

    def resync(self) -> None:
        """Bring the ranks together again, after they did not all run the same cells to the end.

        A collective, for all ranks, before a cell that follows one which failed, or ran on some
        ranks only, or with `active` off. What all ranks have, and differs, gets rank 0's values.
        """
        self._drop_all()
        for synced in self._registry:
            synced.takes = 0
        if not self._alone:
            self._registry.forget(rejoin(self._registry))
        self._steps.clear()  # on all ranks alike: an optimizer is taken up again as it steps

    def record(self, packed: set[int]) -> dict[str, Any]:
        """Return what another rank has to know to go on with this one."""
        return self._registry.record(packed)

    def take_up(self, record: dict[str, Any]) -> None:
        """Go on as another rank does, whose variables this one has now."""
        self._registry.take_up(record)

    def own_hooks(self) -> list[int]:
        """Return the numbers of the hooks on tensors that are not the user's."""
        return [number for synced in self._registry for number in synced.own_hooks()]

    def rebuild_ddps(self) -> None:
        """Build the reducers of the user's own DDP objects as a rank does that gets them now.

        Else they would keep buckets in the order in which gradients once came.
        """
        for ddp in self._registry.ordered_ddps():
            if ddp.process_group is dist.group.WORLD:
                state = ddp.__getstate__()
                del ddp.reducer
                ddp.__setstate__(state)
                for hook, hook_state in ddp._comm_hooks:
                    dist._register_comm_hook(ddp.reducer, hook_state, hook)

    def wrap(self, model: nn.Module, **ddp_kwargs: Any) -> nn.Module:
        """Attach a model now, with options of `DistributedDataParallel`; return the model itself.

        Parameters
        ----------
        model
            The model, in its final shape. One that DDP or FSDP has already is left alone.
        **ddp_kwargs
            ``bucket_cap_mb``, ``gradient_as_bucket_view``, …; and ``comm_hook=(state, hook)``,
            what ``register_comm_hook`` takes.

        Raises
        ------
        UsageError
            If there is nothing to train in it.
        ParityError
            If its shape differs between ranks.
        """
        if is_managed(model) or not self.active:
            return model
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise UsageError(
                f"ddp.wrap: {type(model).__name__} has no parameter that requires a gradient.",
                fix="Wrap it after it is built and unfrozen.",
            )
        needless = sorted(_NEEDLESS & ddp_kwargs.keys())
        if needless:
            text = f"ddp.wrap: {', '.join(needless)} not needed: what it allows works without it"
            self._report.notice("attach:needless", text)
        name = look_around(sys._getframe(1)).modules.get(id(model), ("model", model))[0]
        attachment = self._registry.attach([(name, model)])
        attachment.drop()
        attachment.options = {k: v for k, v in ddp_kwargs.items() if k not in _NEEDLESS}
        if self._alone:
            attachment.announce()
        else:
            attachment.build()
        self._steps.clear()
        return model

    def named_models(self) -> list[tuple[str, nn.Module]]:
        """Return the models that are kept in step, with the user's names for them."""
        attached = (synced for synced in self._registry if isinstance(synced, Attachment))
        return [named for one in attached for named in one.named_roots()]

    def trained_checksums(self) -> dict[str, int]:
        """Return a checksum of the parameters of each model trained since the last call.

        Equal on all ranks unless a model has drifted apart.
        """
        return self._registry.trained_checksums()

    def all_checksums(self) -> dict[str, Any]:
        """Return checksums of every model that is kept in step, and of its optimizers."""
        return checksums(self._registry, self._steps)

    def managed_checksums(self, summed: bool = True) -> dict[str, int]:
        """Return a checksum of each DDP of the user's that was trained since the last call."""
        return self._registry.managed_checksums(summed)

    def is_evaluating(self) -> bool:
        """Return whether the model that was last trained is in evaluation mode."""
        return self._registry.is_evaluating

    def meet_at_loader(self) -> None:
        """See that every rank is about to read a loader (or `ParityError`)."""
        if self.active and threading.current_thread() is threading.main_thread():
            meet_at_loader(self._rounds)

    def normalise_batches(self) -> bool:
        """Return whether the model in training takes statistics of its batches."""
        return self._registry.normalises_batches

    def has_optimizers(self) -> bool:
        """Return whether some optimizer trains what is kept in step."""
        return self._steps.has_optimizers

    def _averages_now(self) -> bool:
        return self.active and not self._alone and not self._in_backward

    def _drop_all(self) -> None:
        for synced in self._registry:
            synced.drop()

    # --- marking

    def _patched_add_param_group(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def add_param_group(optimizer: Optimizer, param_group: dict[str, Any]) -> None:
            original(optimizer, param_group)
            if self.active:
                self._enter(optimizer, sys._getframe(1))

        return add_param_group

    def _patched_ddp_init(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(ddp: DistributedDataParallel, module: nn.Module, *a: Any, **kw: Any) -> None:
            original(ddp, module, *a, **kw)
            if not isinstance(module, Holder):
                self._steps.forget(self._registry.leave(ddp))
                self._look_anew()
                gone = weakref.finalize(ddp, self._look_anew)  # its model may be trained without
                gone.atexit = False

        return init

    def _look_anew(self) -> None:
        """Have what backward reaches, and optimizers step, marked anew."""
        self._steps.forget_idle()
        self._changes.note()

    def _enter(self, optimizer: Optimizer, frame: FrameType | None) -> None:
        """Mark what an optimizer trains, and make it equal on all ranks."""
        for synced in self._steps.enter(optimizer, frame):
            if not self._alone and synced.equalize() and isinstance(synced, LooseTensors):
                synced.announce()
        self._steps.has_state(optimizer)  # it is new: none

    def _take_up(self, optimizer: Optimizer, frame: FrameType | None) -> None:
        """Mark what an optimizer trains that may have trained before."""
        for synced in self._steps.enter(optimizer, frame, steps=True):
            if synced.equalize() and isinstance(synced, LooseTensors):
                synced.announce()

    # --- backward

    def _patched_backward(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if not self.active:
                original(tensors, *args, **kwargs)
                self._forget_all()
            elif self._in_backward:
                self._begin_nested()
                original(tensors, *args, **kwargs)
            else:
                self._before_backward(tensors, sys._getframe(1))
                if kwargs.get("create_graph", len(args) > 2 and args[2]) and not self._alone:
                    self._refuse_graph(tensors)
                self._backward(original, tensors, *args, **kwargs)

        return backward

    def _before_backward(self, tensors: Any, frame: FrameType | None) -> None:
        """Mark what this backward reaches, unless the graph of this call was walked before."""
        frame = user_frame(frame)
        if frame is None or self._sites.knows(frame, self._changes.count):
            return
        reached = leaves(tensors)
        new = self._registry.mark(_trained(reached), frame)
        look_away(frame)
        found = self._that_cover(set(map(id, reached)))
        if not self._alone:
            for synced in found:
                synced.look_closely()
                synced.meet()
        loose = [synced for synced in new if isinstance(synced, LooseTensors)]
        if not self._alone:
            loose = [some for some in loose if some.equalize()]
            for some in loose:
                some.announce()
        if self._steps.step_all(found):  # by hand, one line may train one model after another
            self._sites.add(frame, self._changes.count, loose)

    def _that_cover(self, identities: set[int]) -> list[Synced]:
        return [one for one in self._registry if any(map(one.covers, identities))]

    def _take_in(self, tensors: Any, frame: FrameType | None) -> None:
        """Average what a backward reached that was taken for known, and reached nothing known."""
        reached = _trained(leaves(tensors))
        for new in self._registry.mark(reached, frame):
            if not self._alone and new.equalize():
                for leaf in reached:
                    if new.covers(id(leaf)) and leaf.grad is not None:
                        new.fired.append(leaf)

    def _refuse_graph(self, tensors: Any) -> None:
        """A gradient's graph covers this rank's part of the batch alone, and would after the mean.

        Raises
        ------
        ParityError
            If this backward reaches anything that is kept in step.
        """
        reached = [id(leaf) for leaf in leaves(tensors)]
        for synced in self._registry:
            if not synced.local and any(map(synced.covers, reached)):
                raise ParityError(
                    f"backward(create_graph=True) on {synced.label}: a gradient that is averaged "
                    "over ranks has no graph.",
                    fix="Use torch.autograd.grad(..., create_graph=True), which leaves .grad "
                    "alone, and call backward() on what comes of it; or run with --no-wrap.",
                )

    def _begin_nested(self) -> None:
        """A node of the graph runs a backward of its own, as in reentrant checkpointing.

        Gradients come in several parts then, which no reducer can take while they come.
        """
        if not self._nested:
            self._nested = True
            for synced in self._registry:
                synced.disarm()

    def _backward(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        self._in_backward = True
        try:
            original(*args, **kwargs)
            self._in_backward = False
            if not any(synced.fired or synced.extra for synced in self._registry):
                self._take_in(args[0], sys._getframe(2))
            for synced in self._registry:
                if synced.fired or synced.extra:
                    self._reduce(synced)
        except BaseException:
            self._abandon()
            raise
        finally:
            self._in_backward = self._nested = False

    def _reduce(self, synced: Synced) -> None:
        if self._alone:
            if isinstance(synced, Attachment):
                synced.announce()
            synced.release()
            return
        if self._nested:
            synced.wait_for_backward()
        synced.meet()
        synced.reduce()

    def _forget_all(self) -> None:
        for synced in self._registry:
            synced.forget()

    def _abandon(self) -> None:
        """A backward stopped half way, and a reducer with it."""
        for synced in self._registry:
            if synced.fired or synced.extra:
                synced.drop()

    # --- step

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        """Average what this step will use, where no backward since the last one has done so."""
        if self._alone or not self.active:
            return None
        if not self._steps.knows(optimizer):
            self._take_up(optimizer, sys._getframe(1))
        if self._in_backward:
            self._average_in_backward(optimizer)
            return None
        for synced in self._steps.pending(optimizer):
            self._reduce(synced)
        if self._steps.has_stale_state(optimizer):
            self._steps.share_state(optimizer)
        return with_mean_loss(optimizer, args, kwargs)

    def _patched_hook_registration(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def register_post_accumulate_grad_hook(tensor: Tensor, hook: Callable[..., Any]) -> Any:
            """Average before a hook of the user's that reads the gradient within backward."""
            handle = original(tensor, hook)
            if self.active and not self._alone:
                for synced in self._registry:
                    if isinstance(synced, Attachment) and synced.covers(id(tensor)):
                        synced.watch()
            return handle

        return register_post_accumulate_grad_hook

    def _average_in_backward(self, optimizer: Optimizer) -> None:
        """It steps in a gradient's hook: reducers will only find what was used and cleared."""
        parameters: list[Tensor] = [p for g in optimizer.param_groups for p in g["params"]]
        average_gradients([p for p in parameters if p.grad is not None])
        for synced in self._steps.stepped_by(optimizer):
            synced.wait_for_backward()


def _trained(reached: list[Tensor]) -> list[Tensor]:
    """Leave out inputs: beside ``nn.Parameter``, other tensors that need gradients are data."""
    parameters: list[Tensor] = [leaf for leaf in reached if isinstance(leaf, nn.Parameter)]
    return parameters or reached
