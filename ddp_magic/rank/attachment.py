"""One model kept in step over all ranks.

After each backward that reached the model, `Attachment.reduce` makes sure that one whole
reduction of its gradients has taken place on this rank as on any other: it adds what this rank
did not use, arms a reducer that was not, and builds a new one where the model has changed. On a
rank where every parameter got its gradient, nearly always, that takes a comparison of lengths.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from ddp_magic.rank import agreement, buffers, titles
from ddp_magic.rank.agreement import Verdict
from ddp_magic.rank.averaging import average_gradients
from ddp_magic.rank.buffers import parts
from ddp_magic.rank.owners import managed_parameters
from ddp_magic.rank.reducer import AllTrainable, Reducer
from ddp_magic.rank.report import Report
from ddp_magic.rank.rounds import Rounds

_CLOCK = itertools.count(1)
_BATCHNORM = (
    "BatchNorm normalises by the statistics of each rank's part of a batch, as in DDP; "
    "nn.SyncBatchNorm.convert_sync_batchnorm(model) takes the whole batch's (on GPUs)"
)
_MISSING = {
    "unused": "took no part in this loss, so got no gradient",
    "partly": "got no gradient on this rank, which counts as zero in the mean",
}


class Attachment:
    """The parameters of one model, or of several that share some, averaged together.

    It holds parameters, never the model.

    Parameters
    ----------
    named_roots
        The modules, with what the user calls them.
    rounds
        Where the ranks agree on what they are about to do.

    Attributes
    ----------
    label
        The user's names for the modules, and their classes.
    options
        Keywords of `DistributedDataParallel`.
    fired, extra
        The parameters that got a gradient since the last reduction: those that the reducer holds,
        and those that it does not, being frozen when it was built. Hooks append to these.
    reduces
        How often gradients were averaged.
    reduced_at
        A number that grows with each reduction of any model.
    asked
        How often such as ``torch.autograd.grad`` returned were.
    local
        Whether the model is this rank's alone, so that nothing is averaged.
    waited_s
        How long backward passes, of any model, have waited for others' gradients, when this rank's
        were there.
    takes
        How often values were taken over from rank 0, so that the optimizers' states may differ too.
    agreed
        In which round all ranks last found that they have this model, which tells it from others
        of its name that some ranks still hold; None before.
    """

    waited_s: ClassVar[float] = 0.0

    def __init__(
        self, named_roots: Sequence[tuple[str, nn.Module]], rounds: Rounds, report: Report
    ) -> None:
        self.fired: list[Tensor] = []
        self.extra: list[Tensor] = []
        self.reduces = self.asked = self.reduced_at = 0
        self.local = False
        self.takes = 0
        self.agreed: tuple[int, int] | None = None
        self._computed_s: list[float] = []  # when the gradient came that mostly comes last
        self.options: dict[str, Any] = {}
        self._report = report
        self._rounds = rounds
        self._met_in: int | None = None  # the cell in which all ranks met to average it
        self._roots: list[tuple[str, weakref.ref[nn.Module]]] = []
        self._hooks: dict[int, tuple[Tensor, RemovableHandle]] = {}
        self._thawed: set[int] = set()
        self._reducer: Reducer | None = None
        self._buffer_slots: list[tuple[dict[str, Tensor | None], str]] = []
        self._overlap = True
        self._announced: set[str] = set()
        self._told: set[str] = set()
        self.adopt(named_roots)

    def __del__(self) -> None:
        self.release()

    # --- the model

    def covers(self, identity: int) -> bool:
        """Tell whether the parameter of this identity (``id``) is one of these."""
        return identity in self._hooks or (self.local and identity in self.parameters())

    def roots(self) -> list[nn.Module]:
        """Return the modules whose parameters these are, those that are still alive."""
        return [root for _, root in self.named_roots()]

    def named_roots(self) -> list[tuple[str, nn.Module]]:
        """Return these with the user's names for them."""
        return [(name, root) for name, ref in self._roots if (root := ref()) is not None]

    def parameters(self) -> dict[int, tuple[str, nn.Parameter]]:
        """Return the model's present parameters by identity, but lazy and sharded ones."""
        roots = self.roots()
        managed = managed_parameters(roots)
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for of_user, root in self.named_roots():
            prefix = f"{of_user}." if len(roots) > 1 else ""
            for name, parameter in root.named_parameters():
                if id(parameter) not in managed and can_train(parameter):
                    found.setdefault(id(parameter), (prefix + name, parameter))
        return found

    def adopt(self, named_roots: Iterable[tuple[str, nn.Module]]) -> None:
        """Take in more modules, and whatever parameters are new."""
        present = set(map(id, self.roots()))
        self._roots += [(name, weakref.ref(m)) for name, m in named_roots if id(m) not in present]
        self.label = ", ".join(f"{name} ({type(m).__name__})" for name, m in self.named_roots())
        self.drop()
        self.watch()

    def record(self) -> dict[str, Any]:
        """Return what another rank has to know to be in step with this one."""
        return {
            "named_roots": self.named_roots(),
            "options": self.options,
            "thawed": [p for i, (_, p) in self.parameters().items() if i in self._thawed],
            "overlap": self._overlap,
            "reduces": self.reduces,
            "asked": self.asked,
            "reduced_at": self.reduced_at,
            "agreed": self.agreed,
        }

    def take_up(self, record: dict[str, Any]) -> None:
        """Be as the attachment of another rank; those reduced before it have been taken up."""
        self.options = record["options"]
        self._thawed = set(map(id, record["thawed"]))
        self._overlap = self._overlap and record["overlap"]
        self.reduces, self.asked = record["reduces"], record["asked"]
        self.agreed = record["agreed"]
        self.reduced_at = next(_CLOCK) if record["reduced_at"] else 0

    def own_hooks(self) -> list[int]:
        """Return the numbers of the hooks that these are, on the parameters."""
        return [handle.id for _, handle in self._hooks.values()]

    # --- watching its parameters

    def watch(self) -> None:
        """Note from now on which of the model's present parameters get gradients."""
        self._unhook()
        if self.local:
            return
        members, notes_time = self._reducer, False
        for identity, (_, parameter) in self.parameters().items():
            into = self.fired if members is None or identity in members else self.extra
            # A list's own `append` as the hook: no Python frame for each gradient but one.
            hook = into.append
            if is_read := _has_hooks(parameter):
                hook = self._averaging_before(into)
            elif not notes_time and parameter.requires_grad and parameter.device.type == "cpu":
                hook, notes_time = _noting_when(into, self._computed_s), True
            with AllTrainable([parameter]):
                handle = parameter.register_post_accumulate_grad_hook(hook)
            if is_read:
                _put_first(parameter, handle)
            self._hooks[identity] = (parameter, handle)

    def drop(self) -> None:
        """Give up the reducer; the next reduction builds another."""
        self._reducer = None
        self._buffer_slots = []
        self.forget()

    def disarm(self) -> None:
        """Give up a reducer that waits for gradients, but not what gradients there were."""
        reducer = self._reducer
        if reducer is not None and reducer.armed and len(self.fired) < len(reducer.members):
            self._reducer = None
            self._buffer_slots = []

    def forget(self) -> None:
        """Forget what gradients there were."""
        self.fired.clear()
        self.extra.clear()

    def release(self) -> None:
        """Take everything off the parameters."""
        self.drop()
        self._unhook()

    def wait_for_backward(self) -> None:
        """Reduce after backward, not in it: gradients come more than once, or are used up."""
        self._overlap = False

    def _averaging_before(self, into: list[Tensor]) -> Callable[[Tensor], None]:
        """Return a hook for a parameter whose gradient hooks of the user's will read at once."""
        self.wait_for_backward()

        def average(parameter: Tensor) -> None:
            average_gradients([parameter])
            into.append(parameter)

        return average

    def _unhook(self) -> None:
        for _, handle in self._hooks.values():
            handle.remove()
        self._hooks.clear()

    # --- the same values on all ranks

    def equalize(self) -> bool:
        """Give all ranks rank 0's values if they differ; return whether all ranks have the model.

        Raises
        ------
        ParityError
            If the model's shape differs between ranks.
        """
        verdict = agreement.compare(self._rounds, self.label, self.layout(), self.values())
        if verdict is Verdict.MISSHAPEN:
            agreement.refuse_misshapen(self.label, self.layout())
        if verdict is Verdict.LOCAL:
            self._notice("local", "is not trained on every rank, so its gradients are not averaged")
            self.release()
            self.local = True
            return False
        self._met_in = self._rounds.cell
        self.agreed = self._rounds.last
        if verdict is Verdict.DIFFERENT:
            self.take_values()
        self.share_buffers()
        return True

    def layout(self) -> list[str]:
        """Return a line for each tensor of the model: what has to be alike on all ranks."""
        return agreement.describe([*self.parameters().values(), *buffers.named(self.roots())])

    def values(self) -> list[Tensor]:
        """Return what has to be equal on all ranks as a step begins."""
        return [parameter for _, parameter in self.parameters().values()]

    def take_values(self) -> None:
        """Give all ranks the parameters of rank 0; a collective."""
        agreement.broadcast(self.values())
        self.takes += 1
        self._notice("equalized", "differed between ranks; all have rank 0's values now")

    def share_buffers(self) -> None:
        """Give all ranks rank 0's buffers; never while a backward is to come."""
        buffers.share(self._buffer_slots if self._reducer else buffers.slots(self.roots()))

    # --- reducing

    def meet(self) -> None:
        """See, once in a cell, that every rank is about to average this model.

        Raises
        ------
        ParityError
            If one is not.
        """
        if not self.local and self._reducer is not None and self._met_in != self._rounds.cell:
            agreement.meet(self._rounds, self.label)
            self._met_in = self._rounds.cell

    def look_closely(self) -> None:
        """Give up, before gradients come, a reducer that is not of the model as it is now."""
        if self._reducer is not None:
            self._reducer.doubt()
            if not self._reducer.is_in_place():
                self.drop()

    def reduce(self) -> None:
        """Let every gradient be the mean over ranks, now that a backward is through.

        Raises
        ------
        ParityError
            If the model's shape differs between ranks.
        """
        reducer = self._reducer
        if not (
            reducer is not None
            and reducer.armed
            and len(self.fired) == len(reducer.members)
            and not self.extra
            and reducer.is_in_place()
            and reducer.has_finished()
        ):
            if reducer is not None:
                reducer.doubt()
            reducer = self._catch_up()
        if self._computed_s:
            Attachment.waited_s += time.perf_counter() - self._computed_s[-1]
            self._computed_s.clear()
        self.reduces += 1
        self.reduced_at = next(_CLOCK)
        self.forget()
        if reducer is not None:
            reducer.armed = False
            if self._buffer_slots:
                self.share_buffers()
            if self._overlap:
                reducer.arm()

    def _catch_up(self) -> Reducer | None:
        got = {id(parameter): parameter for parameter in (*self.fired, *self.extra)}
        met = len(self.fired)
        reducer = self._present_reducer(got)
        if reducer is None:
            return None
        missing = [p for identity, p in reducer.by_identity.items() if identity not in got]
        if reducer.armed and met == len(reducer.members) - len(missing):
            unused = reducer.finish(missing)
        else:  # not armed in this backward, or finished in one before it that went unseen
            reducer.arm()
            unused = reducer.finish([*(p for i, p in got.items() if i in reducer), *missing])
        if missing and got:
            self._tell_missing(missing, unused)
        return reducer

    def _present_reducer(self, got: dict[int, Tensor]) -> Reducer | None:
        """Return a reducer of the model as it is now, or None if the model is local."""
        if self._reducer is not None and self._has_changed(self._reducer, got):
            self._thawed.update(map(id, self.extra))
            self._roots = [(name, ref) for name, ref in self._roots if ref() is not None]
            self.drop()
        if self._reducer is None and not self.local and self.equalize():
            self._build()
        return self._reducer

    def _has_changed(self, reducer: Reducer, got: dict[int, Tensor]) -> bool:
        """Tell whether the reducer is not of the model as it is: thawed, moved, frozen, gone.

        What is put in place of something else is met by the walk of a graph that reaches it.
        """
        if self.extra or not reducer.is_in_place():
            return True
        alive = len(self.roots())
        return 0 < alive < len(self._roots) or any(
            not parameter.requires_grad and identity not in self._thawed and identity not in got
            for identity, parameter in reducer.by_identity.items()
        )

    def _trainable(self) -> dict[int, tuple[str, nn.Parameter]]:
        """What was thawed once stays in: a GAN that freezes by turns would rebuild for ever."""
        return {
            identity: (name, parameter)
            for identity, (name, parameter) in self.parameters().items()
            if parameter.requires_grad or identity in self._thawed
        }

    def build(self) -> None:
        """Build the reducer now, rather than at the first backward.

        Raises
        ------
        ParityError
            If the model's shape differs between ranks.
        """
        self._present_reducer({})

    def _build(self) -> None:
        roots = self.roots()
        members = [parameter for _, parameter in self._trainable().values()]
        if not members:
            return
        self._reducer = Reducer(members, _with_sparse_gradients(roots), self.options)
        self._buffer_slots = buffers.slots(roots)
        self.watch()
        self.announce()
        if any(map(takes_statistics, parts(roots))):
            self._report.notice("attach:batchnorm", _BATCHNORM)
        if session_has_gpus() and all(p.device.type == "cpu" for p in self._reducer.members):
            self._notice("idle-gpu", "trains on the CPU beside an idle GPU; .to(device) moves it")

    # --- what the user is told

    def announce(self) -> None:
        """Report each model, the first time."""
        for name, root in self.named_roots():
            if name not in self._announced:
                self._announced.add(name)
                self._report.did(
                    "model", f"{titles.title(name, root)}, {titles.size(root)} parameters"
                )

    def _tell_missing(self, missing: Sequence[Tensor], unused: Sequence[Tensor]) -> None:
        cause, which = ("unused", unused) if unused else ("partly", missing)
        if cause in self._told:
            return
        self._told.add(cause)
        names = {identity: name for identity, (name, _) in self.parameters().items()}
        listed = titles.listed([names[id(p)] for p in which if id(p) in names])
        self._notice(cause, f"{listed} {_MISSING[cause]}")

    def _notice(self, cause: str, text: str) -> None:
        title = ", ".join(titles.title(name, root) for name, root in self.named_roots())
        self._report.notice(f"attach:{cause}:{self.label}", f"{title}: {text}")


def takes_statistics(part: nn.Module) -> bool:
    """Tell whether a layer normalises by the statistics of this rank's batch."""
    return isinstance(part, _BatchNorm) and _own_statistics(part)


def session_has_gpus() -> bool:
    """Tell whether each rank of the session has a GPU to train on."""
    return "nccl" in str(dist.get_backend_config())


def can_train(parameter: Tensor) -> bool:
    """Leave out what is lazy, sharded, or put in place of a parameter for the moment."""
    if is_lazy(parameter) or type(parameter).__module__.startswith("torch.distributed"):
        return False
    return parameter.is_leaf and (parameter.is_floating_point() or parameter.is_complex())


def _noting_when(into: list[Tensor], times_s: list[float]) -> Callable[[Tensor], None]:
    """Return a hook for the first parameter that is trained, which mostly gets its gradient last.

    It holds no attachment, which would live as long as the parameter.
    """

    def note(parameter: Tensor) -> None:
        into.append(parameter)
        times_s.append(time.perf_counter())

    return note


def _with_sparse_gradients(roots: Iterable[nn.Module]) -> frozenset[int]:
    embeddings = (m for m in parts(roots) if isinstance(m, (nn.Embedding, nn.EmbeddingBag)))
    return frozenset(id(layer.weight) for layer in embeddings if layer.sparse)


def _has_hooks(parameter: Tensor) -> bool:
    """Tell whether the user's code reads its gradient within backward."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


def _own_statistics(layer: _BatchNorm) -> bool:
    return layer.training and not isinstance(layer, nn.SyncBatchNorm)


def _put_first(parameter: Tensor, handle: RemovableHandle) -> None:
    hooks: dict[int, Any] = parameter._post_accumulate_grad_hooks
    others = {key: hook for key, hook in hooks.items() if key != handle.id}
    hook = hooks[handle.id]
    hooks.clear()  # torch goes by the order of insertion, which `move_to_end` leaves as it is
    hooks[handle.id] = hook
    hooks.update(others)
