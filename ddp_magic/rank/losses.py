"""The losses of an unchanged training loop, recorded as ``backward`` is called on them."""

from __future__ import annotations

import ast
import operator
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias, cast

import torch
from executing import Source

from ddp_magic.core.lossname import DEFAULT, LossName, of_call
from ddp_magic.core.metrics import Pending
from ddp_magic.errors import UsageError
from ddp_magic.rank.frames import is_library
from ddp_magic.rank.patching import Patches

Points: TypeAlias = dict[str, list[tuple[int, float]]]
Value: TypeAlias = "float | torch.Tensor"  # a tensor: of no dimension, on another device

_KEPT: Final = 512  # points of each series that are kept on each rank
_LIMIT: Final = 2048  # points that wait between two drains, of each series
_OURS: Final = str(Path(__file__).parents[1])


class LossRecorder:
    """Records every scalar that ``backward`` is called on, and what `log` is given.

    Attributes
    ----------
    recording
        False: nothing is recorded.
    """

    def __init__(self) -> None:
        self.recording = False
        self._patches = Patches()
        self._lock = threading.Lock()  # between `drain` and thinning
        self.begin_cell()

    def install(self) -> None:
        """Record from now on."""
        self._patches.replace(torch.Tensor, "backward", self._make_backward)

    def uninstall(self) -> None:
        """Put ``Tensor.backward`` back."""
        self._patches.undo()

    def begin_cell(self) -> None:
        """Forget all that was recorded; steps count from 1 again."""
        self._captured: dict[str, Pending[Any]] = {}
        self._logged: dict[str, Pending[Any]] = {}
        self._kept: dict[str, Pending[Any]] = {}
        self._sites: dict[tuple[int, int, bool], _Site] = {}

    @property
    def step(self) -> int:
        """The training step: how often the most frequent loss was recorded in this cell."""
        return max((series.count for series in self._captured.values()), default=0)

    def log(self, values: Mapping[str, object], step: int | None = None) -> None:
        """Record a point for each named value.

        Parameters
        ----------
        values
            Numbers, or tensors and arrays of one element.
        step
            Where on the x axis: by default the training step or, where nothing trains, how often
            that name was logged in this cell.

        Raises
        ------
        UsageError
            If there is no named value, a name is no text, a value is not a scalar, or the step is
            not a whole number.
        """
        _check_named(values, step)
        scalars = {_checked_name(name): _scalar(name, value) for name, value in values.items()}
        place = self.step if step is None else _checked_step(step)
        if not self.recording:
            return
        for name, value in scalars.items():
            series = self._logged.setdefault(name, Pending(_LIMIT))
            self._add(
                name, series, series.count + 1 if step is None and not place else place, value
            )

    def drain(self) -> Points:
        """Remove and return the points recorded since the last call, as floats.

        May be called on any thread. Values on a GPU are copied here, in one go for each device.
        A failure of the device, which the training thread will meet too, is raised.
        """
        with self._lock:
            series = [*self._captured.items(), *self._logged.items()]
            taken = [(name, pending.take()) for name, pending in series]
        return _as_points(taken)

    def kept(self) -> Points:
        """Return the points of the last cell, some hundreds of each series, on any thread."""
        with self._lock:
            return _as_points([(name, one.waiting()) for name, one in self._kept.items()])

    def _make_backward(self, original: Any) -> Any:
        @wraps(original)
        def backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            if self.recording:
                self._capture(tensor, sys._getframe(1))
            original(tensor, *args, **kwargs)

        return backward

    def _capture(self, tensor: torch.Tensor, frame: FrameType) -> None:
        site = self._sites.get((id(frame.f_code), frame.f_lasti, False))
        if site is None or site.is_library:
            site, frame = self._user_site(frame)
        value = site.value(tensor, frame)
        if value is None:
            return
        if site.series is None:
            site.series = self._captured.setdefault(site.loss.name, Pending(_LIMIT))
        if site.loss.name in self._logged:  # by that name the user shows something of their own
            site.series.count += 1
        else:
            self._add(site.loss.name, site.series, site.series.count + 1, value)

    def _add(self, name: str, series: Pending[Value], step: int, value: Value) -> None:
        kept = self._kept.setdefault(name, Pending(_KEPT))
        for one in (series, kept):
            if one.add(step, value):
                with self._lock:
                    one.thin()

    def _user_site(self, frame: FrameType) -> tuple[_Site, FrameType]:
        """Return the nearest place in the user's code from which ``backward`` was called."""
        caller: FrameType | None = frame
        through_library = False
        while caller is not None:
            code = caller.f_code
            key = (id(code), caller.f_lasti, through_library)
            site = self._sites.get(key)
            if site is None:
                site = self._sites[key] = _Site(code, _name_at(caller, through_library))
            if not site.is_library:
                return site, caller
            through_library = through_library or not code.co_filename.startswith(_OURS)
            caller = caller.f_back
        return self._sites.setdefault((0, 0, True), _Site(frame.f_code, LossName(DEFAULT))), frame


class _Site:
    """A place in the code from which ``backward`` is called.

    It holds the code object, whose ``id`` is its key.
    """

    __slots__ = ("code", "is_library", "loss", "series")

    def __init__(self, code: CodeType, loss: LossName | None) -> None:
        self.code = code
        self.is_library = loss is None
        self.loss = loss or LossName(DEFAULT)
        self.series: Pending[Value] | None = None

    def value(self, tensor: torch.Tensor, frame: FrameType) -> Value | None:
        """Return what to record, or None where that is no scalar."""
        if self.loss.variable:
            named = _variable(frame, self.loss.variable)
            tensor = cast(torch.Tensor, named) if _is_scalar(named) else tensor
        return _recorded(tensor) if _is_scalar(tensor) else None


def _is_scalar(value: object) -> bool:
    # Of a subclass (a DTensor, say) reading the value may be a collective.
    plain = type(value) in (torch.Tensor, torch.nn.Parameter)
    return plain and value.numel() == 1 and value.is_floating_point()  # type: ignore[attr-defined]


def _recorded(tensor: torch.Tensor) -> Value | None:
    if tensor.is_cpu:
        return tensor.item()
    if tensor.is_meta or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    return tensor.detach().reshape(())


def _variable(frame: FrameType, name: str) -> object:
    found = frame.f_locals.get(name)
    return frame.f_globals.get(name) if found is None else found


def _name_at(frame: FrameType, through_library: bool) -> LossName | None:
    """Name the loss of the call that a frame is in; None in code that is not the user's."""
    if is_library(frame):
        return None
    call = Source.executing(frame).node
    if not isinstance(call, ast.Call):
        return LossName(DEFAULT)
    return of_call(call, through_library=through_library)


def _as_points(taken: Sequence[tuple[str, list[tuple[int, Value]]]]) -> Points:
    values = _floats([value for _, points in taken for _, value in points])
    found: Points = {}
    for name, points in taken:
        for step, _ in points:
            found.setdefault(name, []).append((step, next(values)))
    return found


def _floats(values: list[Value]) -> Iterator[float]:
    """Return all as floats, with one copy for each device and type."""
    groups: dict[tuple[torch.device, torch.dtype], dict[int, torch.Tensor]] = {}
    for place, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            groups.setdefault((value.device, value.dtype), {})[place] = value
    found: dict[int, float] = {}
    for group in groups.values():
        found.update(zip(group, torch.stack([*group.values()]).tolist(), strict=True))
    return (float(found.get(place, value)) for place, value in enumerate(values))


def _scalar(name: str, value: Any) -> Value:
    """Return a logged value as a number; as a tensor where to read it is to wait for a device."""
    number = value
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        if not value.is_cpu:
            return value.detach().reshape(())
        number = value.item()
    elif getattr(value, "size", None) == 1:  # NumPy's
        number = value.item()
    if isinstance(number, complex) or hasattr(number, "shape") or not hasattr(number, "__float__"):
        raise UsageError(
            f"ddp.log: {name} is {_described(value)}, not a number.",
            fix=f"Log one number for each name, as in ddp.log({name}=values.mean()).",
        )
    return float(number)


def _described(value: object) -> str:
    shape = getattr(value, "shape", None)
    kind = f"a {type(value).__name__}"
    return kind if shape is None else f"{kind} of shape {list(shape)}"


def _check_named(values: Mapping[str, object], step: object) -> None:
    """Raise `UsageError` where values came without a name, and so as the step."""
    if isinstance(step, Mapping):
        raise UsageError(
            "ddp.log takes its values by name, not as a dict.", fix="Write ddp.log(**values)."
        )
    if not values:
        raise UsageError(
            "ddp.log: there is no value with a name.",
            fix="Name each value, as in ddp.log(loss=0.5).",
        )


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise UsageError(f"ddp.log: the name {name!r} is not a text.", fix='Use "loss", say.')
    return name


def _checked_step(step: object) -> int:
    try:
        return operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(
            f"ddp.log: step={step!r} is not a whole number.", fix="Leave it out, or count steps."
        ) from None
