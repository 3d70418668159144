"""A value on its way between the notebook and a rank: its pickle, and beside it what is large.

What arrays hold is not copied into the pickle (protocol 5 takes it aside), so that it can be
written straight to where the other side finds it. Functions and classes that cells define go
along by value; whatever else has a name in a module goes as that name.
"""

from __future__ import annotations

import io
import itertools
import pickle
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from cloudpickle import cloudpickle as internals

from ddp_magic.errors import UsageError

_ALIGNMENT = 64  # bytes: what vector instructions want
_MOST_TRIED = 10_000  # parts of one container that are searched for what cannot travel
_MOST_STEPS = 50
_LONGEST_REASON = 200
_ATOMS = (int, float, complex, bool, str, bytes, type(None))
_MISSING = object()
_KINDS: tuple[tuple[Any, str], ...] = (
    (types.ModuleType, "a module"),
    (types.GeneratorType, "a generator"),
    ((types.CoroutineType, types.AsyncGeneratorType), "a coroutine"),
    (io.IOBase, "an open file"),
    ((types.FunctionType, types.BuiltinFunctionType, types.MethodType), "a function"),
    ((types.FrameType, types.TracebackType), "a traceback"),
    (type, "a class"),
)

Span = tuple[int, int]  # where a part begins, and how long it is, in bytes


class NotForTravel(Exception):
    """What this package refuses to send; ``why`` says what to do instead, or is ``""``."""

    def __init__(self, value: Any, why: str = "") -> None:
        super().__init__(value, why)
        self.value = value
        self.why = why


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Takes aside what arrays hold; subclasses say how tensors travel.

    Attributes
    ----------
    buffers
        What was taken aside.
    """

    def __init__(self, file: io.BytesIO) -> None:
        self.buffers: list[pickle.PickleBuffer] = []
        super().__init__(file, protocol=5, buffer_callback=self.buffers.append)

    def reducer_override(self, value: Any) -> Any:
        """Say how a value is made on the other side."""
        if isinstance(value, io.IOBase) and not isinstance(value, (io.BytesIO, io.StringIO)):
            raise NotForTravel(value)  # cloudpickle would send what it holds
        reduced = self.reduce(value)
        return super().reducer_override(value) if reduced is NotImplemented else reduced

    def reduce(self, value: Any) -> Any:
        """Return how a value of a library's is made there; `NotImplemented`: as ever."""
        return NotImplemented


class Unpickler(pickle.Unpickler):
    """Makes values; a class that has come before, or comes back, is left as it is here."""

    def __init__(self, file: io.BytesIO, buffers: Sequence[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._known = set(internals._DYNAMIC_CLASS_TRACKER_BY_CLASS)

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name of a module stands for."""
        found = super().find_class(module, name)
        return self._set_class if found is internals._class_setstate else found

    def _set_class(self, kind: type, state: Any) -> type:
        # cloudpickle would give a class of this process's the other one's functions.
        return kind if kind in self._known else internals._class_setstate(kind, state)


@dataclass(frozen=True)
class Parcel:
    """A pickle, and what was taken aside of it."""

    graph: Any
    buffers: Sequence[Any]

    @property
    def parts(self) -> list[memoryview]:
        """Everything as bytes, the pickle first."""
        return [memoryview(one).cast("B") for one in (self.graph, *map(_raw, self.buffers))]

    @property
    def nbytes(self) -> int:
        """How much it is."""
        return sum(part.nbytes for part in self.parts)

    def spans(self) -> list[Span]:
        """Return where each part is to be, one after the other."""
        begin, spans = 0, []
        for part in self.parts:
            spans.append((begin, part.nbytes))
            begin += -(-part.nbytes // _ALIGNMENT) * _ALIGNMENT
        return spans

    def in_bytes(self) -> list[bytearray]:
        """Return copies of its parts, to be sent in a message."""
        return [bytearray(part) for part in self.parts]

    @classmethod
    def of_parts(cls, parts: Sequence[Any]) -> Parcel:
        """Put one together again."""
        return cls(parts[0], parts[1:])

    @classmethod
    def within(cls, memory: memoryview, spans: Sequence[Span]) -> Parcel:
        """Return one that lies in memory."""
        return cls.of_parts([memory[begin : begin + size] for begin, size in spans])

    def open(self, unpickler: type[Unpickler] = Unpickler) -> Any:
        """Return the value; arrays in it use the parcel's memory."""
        return unpickler(io.BytesIO(self.graph), self.buffers).load()


def pack(named: dict[str, Any], pickler: type[Pickler]) -> Parcel:
    """Pack values; what several share is shared on the other side, too.

    Parameters
    ----------
    named
        Values by what they are to be called in errors.

    Raises
    ------
    UsageError
        One cannot travel: names it, or the part of it that cannot.
    """
    try:
        return _pack(named, pickler)
    except Exception as error:  # whatever the user's own __reduce__ raises, too
        for name, value in named.items():
            _raise_culprit(name, value, pickler)
        raise UsageError(f"{', '.join(named)} cannot travel: {_reason(error)}") from None


def _pack(value: Any, pickler: type[Pickler]) -> Parcel:
    file = io.BytesIO()
    pickling = pickler(file)
    pickling.dump(value)
    return Parcel(file.getbuffer(), pickling.buffers)


def _raise_culprit(path: str, value: Any, pickler: type[Pickler]) -> None:
    """Raise `UsageError` for the innermost part that cannot be pickled, if there is one."""
    error = _failure(value, pickler)
    if error is None:
        return
    for _ in range(0 if _is_recursion(error) else _MOST_STEPS):
        if isinstance(error, NotForTravel) and error.value is value:
            break
        for step, part in itertools.islice(_parts_of(value), _MOST_TRIED):
            inner = None if isinstance(part, _ATOMS) else _failure(part, pickler)
            if inner is not None:
                path, value, error = path + step, part, inner
                break
        else:
            break
    reason = _reason(error)
    raise UsageError(f"{path} ({kind_of(value)}) cannot travel" + (f": {reason}" if reason else ""))


def _failure(value: Any, pickler: type[Pickler]) -> Exception | None:
    try:
        _pack(value, pickler)
    except Exception as error:  # whatever the user's own __reduce__ raises, too
        return error
    return None


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds, and how that is written."""
    if isinstance(value, dict):
        for key, part in list(dict.items(value)):
            yield (f"[{key!r}]" if isinstance(key, _ATOMS) else "[…]"), part
    elif isinstance(value, tuple) and hasattr(type(value), "_fields"):
        yield from ((f".{name}", part) for name, part in _zipped(type(value), value))
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{index}]", part) for index, part in enumerate(list(value)))
    elif isinstance(value, (set, frozenset)):
        yield from (("{…}", part) for part in list(value))
    elif isinstance(value, types.FunctionType):
        yield from _used_by(value)
    elif not isinstance(value, (type, types.ModuleType)):
        yield from ((f".{name}", part) for name, part in _attributes(value).items())


def _zipped(kind: Any, value: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    return zip(kind._fields, tuple.__iter__(value), strict=False)


def _attributes(value: Any) -> dict[str, Any]:
    try:
        held = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return dict(held) if isinstance(held, dict) else {}


def _used_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function takes along: variables around it, and global ones."""
    for name in internals._extract_code_globals(function.__code__):
        if (part := function.__globals__.get(name, _MISSING)) is not _MISSING:
            yield f", which uses {name}", part
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if (part := _contents(cell)) is not _MISSING:
            yield f", which uses {name}", part


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def kind_of(value: Any) -> str:
    """Say what a value is: ``a function``, ``a Net``."""
    for kind, words in _KINDS:
        if isinstance(value, kind):
            return words
    name = type(value).__name__
    return f"an {name}" if name[:1].lower() in set("aeiou") else f"a {name}"


def _is_recursion(error: Exception) -> bool:
    return isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)


def _reason(error: Exception) -> str:
    if isinstance(error, NotForTravel):
        return error.why
    if _is_recursion(error):
        return "it is nested too deeply"
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    if re.search(r"cannot pickle '[^']*' object|pickle [^ ]* objects", text):
        return ""  # says again what it is
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"


def make_tensor(
    flat: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool, is_parameter: bool
) -> Any:
    """Return a tensor of these bytes, without a copy; only where torch is imported."""
    torch: Any = sys.modules["torch"]
    tensor = torch.from_numpy(flat).view(getattr(torch, dtype)).reshape(shape)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def _raw(buffer: Any) -> Any:
    return buffer.raw() if isinstance(buffer, pickle.PickleBuffer) else buffer


def write(parts: Sequence[memoryview], spans: Sequence[Span], put: Callable[..., int]) -> None:
    """Write parts to where they are to be; ``put(bytes, position)`` returns how much it wrote."""
    for part, (begin, size) in zip(parts, spans, strict=True):
        done = 0
        while done < size:
            done += put(part[done:], begin + done)
