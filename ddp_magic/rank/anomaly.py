"""Finds where a value that is not finite first appears, in a cell with ``--detect-anomaly``.

What is looked at: every module's output, the tensors that ``backward`` is called on, each
parameter's gradient before it is averaged (after that, no rank could tell whose it was), and the
parameters after each step. NaN fails the cell anywhere. An infinite value fails it in a loss, a
gradient, a parameter, and in the output of torch's own layers with weights. In any other output it
may be meant, as in a mask: the first is kept, and told if a NaN or an infinite loss comes of it.

What a `GradScaler` has scaled up may overflow: the scaler skips that step and scales less. So in a
cell that uses one, losses are looked at before they are scaled, and gradients are left to the
scaler until it does not scale up any more.

Each look waits for the device. Nothing is hooked or replaced outside such a cell.
"""

from __future__ import annotations

import ast
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any

import torch
from executing import Source
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from ddp_magic.core.anomaly import Census, told_inputs
from ddp_magic.core.lossname import DEFAULT, of_call, of_expression
from ddp_magic.errors import AnomalyError
from ddp_magic.rank.finite import are_finite, census, floating, tensors_in
from ddp_magic.rank.frames import library_user
from ddp_magic.rank.graph import leaves
from ddp_magic.rank.modulecalls import ModuleCall, Names, line, module_calls
from ddp_magic.rank.patching import Patches

Models = Callable[[], Iterable[tuple[str, nn.Module]]]

_CLEAN = "clean the data, or leave such batches out"
_SMALLER = "lower the learning rate, or clip the gradients"
_OPERATION = "torch.autograd.set_detect_anomaly(True) in the cell names the operation"
_HALF = "float16 ends at 65,504: use bfloat16, or float32 for this module"


class AnomalyDetector:
    """Fails a cell where a value that is not finite first appears.

    Parameters
    ----------
    models
        Returns models, with the user's names for them, beside those that variables name.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._patches = Patches()
        self._handles: list[RemovableHandle] = []
        self._forget()

    def begin_cell(self) -> None:
        """Look at all that is computed from now on."""
        self._forget()
        self._patches.replace(torch.autograd, "backward", self._patched_backward)
        self._patches.replace(torch.amp.GradScaler, "scale", self._patched_scale)
        self._handles = [
            register_module_forward_hook(self._after_forward, with_kwargs=True),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def end_cell(self) -> None:
        """Take off whatever was put on."""
        self._patches.undo()
        for handle in self._handles:
            handle.remove()
        self._handles = []
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
                raise self._output_error(found, list(module_calls(frame)))
            if found.infinite:
                self._note_infinite(module, (args, kwargs), found, frame)

    def _output_error(self, found: Census, calls: list[ModuleCall]) -> AnomalyError:
        """Say where a NaN comes from, given the calls of modules around it, innermost first."""
        names = self._names(calls[-1].frame.f_back)
        inner = None  # the outermost call so far that was given a NaN
        for call in calls:
            inputs = list(map(census, floating(call.inputs)))
            if any(one.nan for one in inputs):
                inner = call
            elif inner is None:
                return self._of_module(call, found, inputs, names)
            else:
                return self._of_code_between(call, inner, names)
        assert inner is not None
        return self._of_data(inner, names)

    def _of_module(
        self, call: ModuleCall, found: Census, inputs: list[Census], names: Names
    ) -> AnomalyError:
        name = names.module(call.module)
        context = [f"its input: {one.span}" for one in inputs]
        for path, parameter in call.module.named_parameters():
            if not are_finite([parameter]):
                context.insert(0, f"its parameter {path} has {census(parameter).counts}")
                break
        at = self._at(call.frame)
        return self._error(
            f"the output of {name} has {found.counts} ({at}); {told_inputs(inputs)}",
            context,
            fix=_HALF if found.infinite and found.dtype == "float16" else "",
        )

    def _of_code_between(self, outer: ModuleCall, inner: ModuleCall, names: Names) -> AnomalyError:
        name, within = names.module(inner.module), names.module(outer.module)
        bad = self._bad(inner.inputs)
        return self._error(
            f"what {within} gives to {name} has {bad.counts} ({self._at(inner.frame)}); "
            "its own input and the outputs of its modules had no NaN",
            [f"it is {bad.span}"],
        )

    def _of_data(self, call: ModuleCall, names: Names) -> AnomalyError:
        which, bad = next(_bad_arguments(call))
        where = ", ".join(filter(None, [bad.batch_indices, self._at(call.frame)]))
        name = names.module(call.module)
        return self._error(
            f"the input of {name} ({which}) has {bad.counts} ({where})",
            [f"it is {bad.span}"],
            fix=_CLEAN,
        )

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
            raise self._of_module(calls[0], found, given, names)
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
        raise self._error(
            f"{_loss_name(frame)} {is_what} ({self._at(frame)}), computed from outputs of modules "
            "that had no NaN"
        )

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
            raise self._error(
                f"the gradient of {name} has {found.counts} ({self._at(frame)}); "
                "the loss was finite",
                [f"it is {found.span}"],
                fix=_OPERATION if found.nan else _SMALLER,
            )

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
        return self._error(
            f"{name} has {census(parameter).counts} after optimizer.step() ({at})",
            context,
            fix=_SMALLER,
        )

    # --- how it is told

    def _names(self, frame: FrameType | None) -> Names:
        return Names(frame, self._models())

    def _at(self, frame: FrameType | None) -> str:
        step = max(self._steps.values(), default=0) + 1
        return ", ".join(filter(None, [f"step {step}", line(frame)]))

    def _bad(self, value: Any) -> Census:
        return next(one for one in map(census, floating(value)) if one.nan or one.infinite)

    def _error(self, cause: str, context: Iterable[str] = (), fix: str = "") -> AnomalyError:
        lines = [*context, *([self._infinite] if self._infinite else [])]
        return AnomalyError(f"{cause}.", fix=fix, context="\n".join(lines))


def _bad_arguments(call: ModuleCall) -> Iterator[tuple[str, Census]]:
    """Yield each argument of a call that holds a NaN, and what it holds."""
    args, kwargs = call.inputs
    named = [(f"argument {number}", value) for number, value in enumerate(args, 1)]
    for name, value in [*named, *kwargs.items()]:
        for tensor in floating(value):
            if (found := census(tensor)).nan:
                yield name, found


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
