"""Takes a value apart: models into their tensors, containers and objects into what they hold.

It ends whatever the value is (it may hold itself, or be nested without end), and runs none of its
code.
"""

from __future__ import annotations

import enum
import functools
import random
import struct
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ddp_magic.core.parts import Part, Path
from ddp_magic.rank import peek
from ddp_magic.rank.flat import Flat, FlatArray, FlatTensor, digest, digests, why_unreadable
from ddp_magic.rank.tables import columns
from ddp_magic.rank.wording import text_of

_HELD: dict[type, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords"),
    types.MethodType: ("__func__", "__self__"),
    types.FunctionType: ("__defaults__", "__kwdefaults__", "__closure__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}
_SIMPLE = (bool, int, float, complex, str, bytes, type(None), Tensor, np.ndarray)
_MANY = 32  # numbers in a list that are taken for an array
_INT64 = range(-(2**63), 2**63)
# Not the user's: what lies behind it is a process, and no value.
_MACHINERY = ("ddp_magic", "IPython", "ipykernel", "ipyparallel", "zmq", "asyncio", "threading")
_CYCLE = "one that holds it"

Children: TypeAlias = Sequence[tuple[str, Any]]


@dataclass
class Limits:
    """How far a value is taken apart.

    Attributes
    ----------
    parts
        How many parts there may be.
    items
        How many elements of one container are looked at.
    depth
        How deep they are nested.
    octets
        How many bytes of a text are looked at.
    read
        Gives the checksum of a tensor's elements, and whether it is of all of them.
    """

    parts: int = 50_000
    items: int = 50_000
    depth: int = 100
    octets: int = 2**30
    read: Callable[[Flat], tuple[bytes, bool]] = field(default=lambda flat: (digests(flat), True))


class Taken:
    """A value taken apart, once.

    Attributes
    ----------
    is_whole
        Whether no part was left out so far, and all of each was looked at.
    flats
        The elements of the tensors met, by path, if they are to be kept.
    """

    def __init__(self, value: Any, limits: Limits, keep: bool = False) -> None:
        self._value = value
        self._limits = limits
        self.is_whole = True
        self.flats: dict[Path, Flat] = {}
        self._keeps = keep

    def __iter__(self) -> Iterator[Part]:
        count = 0
        waiting: list[tuple[Path, Any, _Holders | None]] = [((), self._value, None)]
        while waiting:
            if count >= self._limits.parts:
                self.is_whole = False
                return
            path, value, holders = waiting.pop()
            count += 1
            with torch._C.DisableTorchFunctionSubclass():
                part, children = self._look(path, value, holders)
            yield part
            within = _Holders(value, holders)
            waiting += [((*path, step), child, within) for step, child in reversed(children)]

    def _look(self, path: Path, value: Any, holders: _Holders | None) -> tuple[Part, Children]:
        kind = peek.class_name(type(value))
        if (flat := self._flat(value)) is not None:
            return self._of_elements(path, kind, value, flat), ()
        if peek.is_a(value, Tensor):
            self.is_whole = False
            return Part(path, kind, {}, unseen=why_unreadable(value)), ()
        if (content := self._content(value)) is not None:
            number = value if type(value) in (int, float) and _fits(value) else None
            return Part(path, kind, {}, text_of(value), digest(content), number=number), ()
        if holders is not None and holders.have(value):
            return Part(path, kind, {}, _CYCLE, digest(b"")), ()
        if len(path) >= self._limits.depth:
            self.is_whole = False
            return Part(path, kind, {}, unseen="too deep"), ()
        return self._of_holder(path, kind, value)

    def _flat(self, value: Any) -> Flat | None:
        if peek.is_a(value, Tensor):
            return None if why_unreadable(value) else FlatTensor(value)
        if peek.is_a(value, (np.ndarray, np.generic)):
            flat = FlatArray(value)
            return None if flat.holds_objects else flat
        if type(value) in (list, tuple) and len(value) > _MANY:
            numbers = _numbers(peek.items(value, self._limits.items))
            self.is_whole &= numbers is None or len(numbers) == len(value)
            return None if numbers is None else FlatArray(numbers)
        return None

    def _of_elements(self, path: Path, kind: str, value: Any, flat: Flat) -> Part:
        if self._keeps:
            self.flats[path] = flat
            found, whole = b"", True
        else:
            found, whole = self._limits.read(flat)
        self.is_whole &= whole
        facets = {"shape": str(tuple(flat.shape)), "dtype": flat.dtype, "device": flat.device}
        if type(value) in (list, tuple):
            facets = {"length": f"{len(value):,}", "dtype": flat.dtype}
        if peek.is_a(value, Tensor):
            facets["requires_grad"] = str(value.requires_grad)
        return Part(path, kind, facets, digest=found, count=flat.count)

    def _content(self, value: Any) -> bytes | None:
        """Return what makes a value that holds no others the same on another rank."""
        if (plain := _plain(value)) is not None:
            return plain
        for kind in (str, bytes, bytearray):
            if peek.is_a(value, kind):
                return self._octets(value, kind)
        if peek.is_a(value, (set, frozenset)):
            each = [self._content(item) for item in peek.items(value, self._limits.items)]
            self.is_whole &= len(each) == peek.length(value)
            if None not in each:
                return b"".join(sorted(digest(one) for one in each if one is not None))
        return None

    def _octets(self, value: Any, kind: Any) -> bytes:
        most, length = self._limits.octets, kind.__len__(value)
        some = kind.__getitem__(value, slice(most))
        self.is_whole &= length <= most
        octets = some.encode("utf-8", "surrogatepass") if kind is str else bytes(some)
        return b"%d:" % length + octets

    def _of_holder(self, path: Path, kind: str, value: Any) -> tuple[Part, Children]:
        children = self._children(value)
        if children is None:
            self.is_whole = False
            return Part(path, kind, {}, unseen=f"a {kind} cannot be looked into"), ()
        facets = {}
        if peek.is_container(value) and not peek.is_a(value, dict):
            facets["length"] = f"{peek.length(value):,}"
        is_function = type(value) is types.FunctionType
        content = digest(_of_code(value.__code__)) if is_function else b""
        return Part(path, kind, facets, text_of(value), content), children

    def _children(self, value: Any) -> Children | None:
        most = self._limits.items
        if peek.is_a(value, nn.Module):
            return _of_module(value)
        if peek.is_a(value, Optimizer):
            return _of_optimizer(value)
        if peek.is_container(value):
            self.is_whole &= peek.length(value) <= most
            if peek.is_a(value, dict):
                return [(_key(k), v) for k, v in peek.entries(value, most)]
            if peek.is_a(value, (set, frozenset)):
                return None
            return [(f"[{index}]", item) for index, item in enumerate(peek.items(value, most))]
        if type(value) is torch.Generator:
            return [(".state", value.get_state())]
        if type(value) is random.Random:
            return [(".state", value.getstate())]
        if (names := _HELD.get(type(value))) is not None:
            return [(f".{name}", getattr(value, name, None)) for name in names]
        if type(value) is types.CellType:  # compared with an empty one, its content is not
            return [] if value == types.CellType() else [(".cell_contents", value.cell_contents)]
        if peek.is_a(value, np.ndarray):
            objects = np.ndarray.view(value, np.ndarray)
            self.is_whole &= objects.size <= most
            return [(f"[{index}]", item) for index, item in enumerate(objects.flat[:most])]
        return self._attributes(value)

    def _attributes(self, value: Any) -> Children | None:
        kind = type(value)
        if peek.package(kind) in _MACHINERY or peek.is_a(value, _BaseDataLoaderIter):
            return None
        if (table := columns(value)) is not None:
            return table
        if peek.is_a(value, type):
            return _of_class(value)
        held: dict[Any, Any] | None
        if peek.is_a(value, BaseException):
            held = {"args": peek.exception_args(value), **(peek.attributes(value) or {})}
        else:
            held = None if peek.holds_more(value) else peek.attributes(value)
        return None if held is None else [(f".{_word(n)}", one) for n, one in held.items()]


class _Holders:
    """What a part lies in, for values that hold themselves."""

    def __init__(self, value: Any, others: _Holders | None) -> None:
        self._value = value
        self._others = others

    def have(self, value: Any) -> bool:
        """Tell whether this is one of them."""
        holder: _Holders | None = self
        while holder is not None:
            if holder._value is value:
                return True
            holder = holder._others
        return False


def tensors_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Return a model's parameters and buffers by name, each module's once."""
    waiting, met = [("", module)], {id(module)}
    while waiting:
        prefix, part = waiting.pop()
        own = peek.attributes(part) or {}
        for kind in ("_parameters", "_buffers"):
            for name, tensor in peek.entries(own.get(kind) or {}):
                if tensor is not None:
                    yield f"{prefix}{name}", tensor
        inside = [(n, m) for n, m in peek.entries(own.get("_modules") or {}) if id(m) not in met]
        met.update(id(one) for _, one in inside)
        waiting += [(f"{prefix}{n}.", m) for n, m in reversed(inside) if m is not None]


def _of_module(module: nn.Module) -> Children:
    """Return its parameters, buffers and modules, and of its attributes those that are plain."""
    own = peek.attributes(module) or {}
    found: list[tuple[str, Any]] = []
    for kind in ("_parameters", "_buffers"):
        found += [(f".{n}", t) for n, t in peek.entries(own.get(kind) or {}) if t is not None]
    found += [
        (f".{name}", value)
        for name, value in own.items()
        if not _word(name).startswith("_") and type(value) in _SIMPLE
    ]
    return found + [(f".{n}", m) for n, m in peek.entries(own.get("_modules") or {})]


def _of_optimizer(optimizer: Optimizer) -> Children:
    """Return its options and state; the parameters, which are the model's, by number alone."""
    own = peek.attributes(optimizer) or {}
    found: list[tuple[str, Any]] = []
    numbers: dict[int, int] = {}
    for index, group in enumerate(own.get("param_groups") or ()):
        for name, value in peek.entries(group):
            if _word(name) == "params":
                for parameter in value:
                    numbers.setdefault(id(parameter), len(numbers))
                value = len(value)
            found.append((f".param_groups[{index}]{_key(name)}", value))
    kept = peek.entries(own.get("state") or {})
    numbered = [(numbers.get(id(parameter)), state) for parameter, state in kept]
    found += [
        (f".state[{number}]", state)
        for number, state in sorted(
            (pair for pair in numbered if pair[0] is not None), key=lambda pair: pair[0] or 0
        )
    ]
    return found


def _of_class(kind: type) -> Children:
    """Return what a class that a cell has defined has: its functions, and what it sets."""
    members = peek.class_members(kind)
    return [(f".{_word(n)}", one) for n, one in members.items() if not _word(n).startswith("__")]


def _word(name: Any) -> str:
    return name if type(name) is str else text_of(name)


def _key(key: Any) -> str:
    return f"[{str.__repr__(key) if type(key) is str else text_of(key)}]"


def _plain(value: Any) -> bytes | None:
    kind = type(value)
    if peek.is_a(value, enum.Enum):
        return peek.member_name(value).encode()
    if peek.is_a(value, int):
        return int.to_bytes(value, int.bit_length(value) // 8 + 1, "little", signed=True)
    if peek.is_a(value, float):
        return struct.pack("<d", value)
    if peek.is_a(value, complex):
        return struct.pack("<dd", value.real, value.imag)
    if kind is torch.device:
        return str(value.type).encode()  # each rank has its own number
    if kind in (type(None), type(Ellipsis), range, torch.dtype, torch.layout):
        return repr(value).encode()
    if peek.is_a(value, type) and not peek.is_of_cell(value):
        return peek.full_name(value).encode()
    if kind is types.ModuleType:
        return str(peek.attribute(value, "__name__")).encode()
    if kind is types.BuiltinFunctionType:
        return str(value.__qualname__).encode()
    return None


def _of_code(code: types.CodeType) -> bytes:
    """Return what a function does, wherever it was defined."""
    constants = [
        _of_code(one) if type(one) is types.CodeType else repr(one).encode()
        for one in code.co_consts
        if type(one) is not frozenset  # in no order, and always of what stands in the code
    ]
    return b"|".join([code.co_code, repr(code.co_names).encode(), *constants])


def _numbers(values: Sequence[Any]) -> np.ndarray[Any, Any] | None:
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.array(values, dtype=np.float64)
    if kinds == {int} and min(values) in _INT64 and max(values) in _INT64:
        return np.array(values, dtype=np.int64)
    return None


def _fits(value: int | float) -> bool:
    return type(value) is float or value in _INT64
