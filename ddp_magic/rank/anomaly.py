"""Finds where a value that is not finite first appears, in a cell with ``--detect-anomaly``.

What is looked at: every module's output, the tensors that ``backward`` is called on, each
parameter's gradient before it is averaged (after that, no rank could tell whose it was), and the
parameters after each step. NaN fails the cell anywhere. An infinite value fails it in a loss, a
gradient, a parameter, and in the output of torch's own layers with weights. In any other output it
may be meant, as in a mask: the first is kept, and told if a NaN or an infinite loss comes of it.

What a `GradScaler` has scaled up may overflow: the scaler skips that step and scales less. So in a
cell that uses one, losses are looked at before they are scaled, and gradients are left to the
scaler until it does not scale up any more.

Each look waits for the device, and what was compiled runs as if it were not. Nothing is hooked or
replaced outside such a cell.
"""

from __future__ import annotations

import ast
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import FrameType
from typing import Any

import torch
from executing import Source
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddp_magic.core.anomaly import Census
from ddp_magic.core.lossname import DEFAULT, of_call, of_expression
from ddp_magic.errors import AnomalyError
from ddp_magic.rank.culprit import Finding, culprit, of_module
from ddp_magic.rank.finite import are_finite, census, floating, tensors_in
from ddp_magic.rank.frames import library_user
from ddp_magic.rank.graph import leaves
from ddp_magic.rank.modulecalls import Names, line, module_calls
from ddp_magic.rank.patching import Patches

Models = Callable[[], Iterable[tuple[str, nn.Module]]]

_SMALLER = "lower the learning rate, or clip the gradients"
_OPERATION = "torch.autograd.set_detect_anomaly(True) in the cell names the operation"


class AnomalyDetector:
    """Fails a cell where a value that is not finite first appears.

    Parameters
    ----------
    models
        Returns models, with the user's names for them, beside those that variables name.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._cell = ExitStack()
        self._forget()

    def begin_cell(self) -> None:
        """Look at all that is computed from now on."""
        self._forget()
        # Within what is compiled nothing can be looked at, and hooks would break its graph.
        self._cell.enter_context(torch.compiler.set_stance("force_eager"))
        patches = Patches()
        self._cell.callback(patches.undo)
        patches.replace(torch.autograd, "backward", self._patched_backward)
        patches.replace(torch.amp.GradScaler, "scale", self._patched_scale)
        for handle in (
            register_module_forward_hook(self._after_forward, with_kwargs=True),
            register_optimizer_step_post_hook(self._after_step),
        ):
            self._cell.callback(handle.remove)

    def end_cell(self) -> None:
        """Take off whatever was put on."""
        self._cell.close()
        self._forget()

    def _forget(self) -> None:
        self._steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._scaler: Callable[[], Any] = lambda: None  # that has scaled a loss
        self._infinite = ""  # the first output that was, since the last step
        self._backward_from: FrameType | None = None

    # --- outputs

    def _after_forward(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if torch.compiler.is_compiling() or torch._C._get_tracing_state():
            return
        if are_finite(tensors_in(output)):
            return
        frame = sys._getframe(1)
        for tensor in floating(output):
            found = census(tensor)
            if found.nan:
                calls = list(module_calls(frame))
                names = self._names(calls[-1].frame.f_back)
                raise self._error(culprit(found, calls, names, self._at))
            if found.infinite:
                self._note_infinite(module, (args, kwargs), found, frame)

    def _note_infinite(
        self, module: nn.Module, inputs: Any, found: Census, frame: FrameType
    ) -> None:
        """Keep the first output that is infinite, or raise if it cannot be meant."""
        given = list(map(census, floating(inputs)))
        if any(one.infinite or one.nan for one in given):
            return
        calls = list(module_calls(frame))
        is_layer = type(module).__module__.startswith("torch.nn.modules.")
        if is_layer and module._parameters:
            names = self._names(calls[-1].frame.f_back)
            raise self._error(of_module(calls[0], found, given, names, self._at))
        if not self._infinite:
            name = self._names(calls[-1].frame.f_back).module(module)
            self._infinite = (
                f"the first infinite output was that of {name}: {found.counts} ({self._at(frame)})"
            )

    # --- losses and gradients

    def _patched_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def scale(scaler: Any, outputs: Any) -> Any:
            if scaler.is_enabled():
                self._scaler = weakref.ref(scaler)
                losses = list(tensors_in(outputs))
                self._check_losses(losses, sys._getframe(1), before_scaling=True)
            return original(scaler, outputs)

        return scale

    def _patched_backward(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            frame = sys._getframe(1)
            roots = list(tensors_in(tensors))
            self._check_losses(roots, frame)
            with self._watched([root for root in roots if root.requires_grad], frame):
                original(tensors, *args, **kwargs)

        return backward

    def _check_losses(
        self, roots: list[Tensor], frame: FrameType, *, before_scaling: bool = False
    ) -> None:
        """Raise if what is to be differentiated is not finite, but for what a scaler has done."""
        if are_finite(roots):
            return
        value = next(root for root in floating(roots) if not are_finite([root]))
        found = census(value)
        if not found.nan and self._is_scaled_up() and not before_scaling:
            return
        is_what = f"is {value.item():g}" if found.total == 1 else f"has {found.counts}"
        cause = f"{_loss_name(frame)} {is_what} ({self._at(frame)})"
        raise self._error(Finding(f"{cause}, computed from outputs of modules that had no NaN"))

    @contextmanager
    def _watched(self, roots: list[Tensor], frame: FrameType) -> Iterator[None]:
        """Look at each gradient that a backward adds to, before it is averaged."""
        reached = leaves(roots)
        parameters = [leaf for leaf in reached if isinstance(leaf, nn.Parameter)] or reached
        before, self._backward_from = self._backward_from, frame
        handles = [one.register_hook(self._gradient_hook(one)) for one in parameters]
        try:
            yield
        finally:
            self._backward_from = before
            for handle in handles:
                handle.remove()

    def _gradient_hook(self, parameter: Tensor) -> Callable[[Tensor], None]:
        def check(gradient: Tensor) -> None:
            if are_finite([gradient]) or self._is_scaled_up():
                return
            frame, found = self._backward_from, census(gradient)
            name = self._names(frame).parameter(parameter)
            cause = f"the gradient of {name} has {found.counts} ({self._at(frame)})"
            fix = _OPERATION if found.nan else _SMALLER
            found_here = Finding(f"{cause}; the loss was finite", [f"it is {found.span}"], fix)
            raise self._error(found_here)

        return check

    def _is_scaled_up(self) -> bool:
        """Tell whether a `GradScaler` will skip the step, and try it with a smaller scale."""
        scaler = self._scaler()
        return scaler is not None and scaler.get_scale() > 1

    # --- parameters

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        step = self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        self._infinite = ""
        for group in optimizer.param_groups:
            if not are_finite(group["params"]):
                raise self._step_error(group, step, sys._getframe(1))

    def _step_error(self, group: dict[str, Any], step: int, frame: FrameType) -> AnomalyError:
        parameter = next(one for one in group["params"] if not are_finite([one]))
        name = self._names(frame).parameter(parameter)
        context = (
            [f"its gradient: {census(parameter.grad).span}"] if parameter.grad is not None else []
        )
        if "lr" in group:
            context.append(f"the learning rate: {float(group['lr']):g}")
        at = ", ".join(filter(None, [f"step {step}", line(frame)]))
        cause = f"{name} has {census(parameter).counts} after optimizer.step() ({at})"
        return self._error(Finding(cause, context, _SMALLER))

    # --- how it is told

    def _names(self, frame: FrameType | None) -> Names:
        return Names(frame, self._models())

    def _at(self, frame: FrameType | None) -> str:
        step = max(self._steps.values(), default=0) + 1
        return ", ".join(filter(None, [f"step {step}", line(frame)]))

    def _error(self, found: Finding) -> AnomalyError:
        lines = [*found.context, *([self._infinite] if self._infinite else [])]
        return AnomalyError(f"{found.cause}.", fix=found.fix, context="\n".join(lines))


def _loss_name(frame: FrameType | None) -> str:
    """Return what the user calls the tensor that is differentiated, or scaled."""
    user = library_user(frame)
    call = Source.executing(user).node if user is not None else None
    if not isinstance(call, ast.Call):
        return DEFAULT
    if isinstance(call.func, ast.Attribute) and call.func.attr == "scale":
        return of_expression(call).name
    through_library = False
    while frame is not None and frame is not user:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        through_library |= package not in ("torch", "ddp_magic")
        frame = frame.f_back
    return of_call(call, through_library=through_library).name
