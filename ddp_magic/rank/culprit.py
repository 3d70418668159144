"""Says which module, code or data a value that is not finite comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from ddp_magic.core.anomaly import Census, told_inputs
from ddp_magic.rank.finite import are_finite, census, floating
from ddp_magic.rank.modulecalls import ModuleCall, Names

_CLEAN = "clean the data; a batch that is left out has to be left out on all ranks"
_HALF = "float16 ends at 65,504: use bfloat16, or float32 for this module"

At = Callable[[FrameType], str]  # the step and the line, given a frame


@dataclass(frozen=True)
class Finding:
    """What was found, further lines about it, and what may help."""

    cause: str
    context: Sequence[str] = ()
    fix: str = ""


def culprit(found: Census, calls: Sequence[ModuleCall], names: Names, at: At) -> Finding:
    """Say where the NaN of a module's output comes from.

    Parameters
    ----------
    found
        The output.
    calls
        Of the module and of those around it, the innermost first.
    """
    inner = None  # the outermost call so far that was given a NaN
    for call in calls:
        inputs = list(map(census, floating(call.inputs)))
        if any(one.nan for one in inputs):
            inner = call
        elif inner is None:
            return of_module(call, found, inputs, names, at)
        else:
            return _of_code_between(call, inner, names, at)
    assert inner is not None
    return _of_data(inner, names, at)


def of_module(
    call: ModuleCall, found: Census, inputs: Sequence[Census], names: Names, at: At
) -> Finding:
    """Say that a module's output is not finite, and what its inputs and parameters are."""
    context = [f"its input: {one.span}" for one in inputs]
    for path, parameter in call.module.named_parameters():
        if not are_finite([parameter]):
            context.insert(0, f"its parameter {path} has {census(parameter).counts}")
            break
    return Finding(
        f"the output of {names.module(call.module)} has {found.counts} ({at(call.frame)}); "
        f"{told_inputs(inputs)}",
        context,
        _HALF if found.infinite and found.dtype == "float16" else "",
    )


def _of_code_between(outer: ModuleCall, inner: ModuleCall, names: Names, at: At) -> Finding:
    _, bad = next(_bad_arguments(inner))
    return Finding(
        f"what {names.module(outer.module)} gives to {names.module(inner.module)} has "
        f"{bad.counts} ({at(inner.frame)}); its own input and the outputs of its modules "
        "had no NaN",
        [f"it is {bad.span}"],
    )


def _of_data(call: ModuleCall, names: Names, at: At) -> Finding:
    which, bad = next(_bad_arguments(call))
    where = ", ".join(filter(None, [bad.batch_indices, at(call.frame)]))
    return Finding(
        f"the input of {names.module(call.module)} ({which}) has {bad.counts} ({where})",
        [f"it is {bad.span}"],
        _CLEAN,
    )


def _bad_arguments(call: ModuleCall) -> Iterator[tuple[str, Census]]:
    """Yield each argument of a call that holds a NaN, and what it holds."""
    args, kwargs = call.inputs
    named = [(f"argument {number}", value) for number, value in enumerate(args, 1)]
    for name, value in [*named, *kwargs.items()]:
        for tensor in floating(value):
            if (found := census(tensor)).nan:
                yield name, found
