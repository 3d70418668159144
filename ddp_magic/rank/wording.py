"""What a value looks like in a few words, whatever it is: bounded, and without its own code."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from ddp_magic.rank import peek

_LONGEST = 80
_LONGEST_STRING = 40
_DEEPEST = 3
_MOST_ITEMS = 5
_MOST_BITS = 200
_PLAIN = (bool, float, complex, type(None), type(Ellipsis), range, slice)
_BRACKETS: dict[type, str] = {list: "[]", tuple: "()", set: "{}", frozenset: "{}", dict: "{}"}


def text_of(value: Any, depth: int = 0) -> str:
    """Return a value in at most some eighty characters."""
    return cut(_text(value, depth), _LONGEST)


def cut(text: str, most: int) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shape_text(shape: Iterable[int]) -> str:
    """Return a shape as Python writes it."""
    return str(tuple(shape))


def _text(value: Any, depth: int) -> str:
    kind = type(value)
    if peek.is_a(value, enum.Enum):
        return peek.member_name(value)
    if peek.is_a(value, int) and kind is not bool:
        return _integer(value)
    if peek.is_a(value, float):
        return float.__repr__(value)
    if peek.is_a(value, complex):
        return complex.__repr__(value)
    if peek.is_a(value, str):
        return _string(str, value)
    if peek.is_a(value, (bytes, bytearray)):
        return _string(bytes if peek.is_a(value, bytes) else bytearray, value)
    if kind in (range, slice):
        parts = [getattr(value, part) for part in ("start", "stop", "step")]
        return f"{kind.__name__}({', '.join(text_of(part, _DEEPEST) for part in parts)})"
    if kind in _PLAIN or kind in (torch.device, torch.dtype, torch.layout):
        return repr(value)
    if peek.is_a(value, (torch.Tensor, np.ndarray)):
        return f"{peek.class_name(kind)}{_shape(value)}"
    if peek.is_a(value, np.generic):
        return cut(str(np.asarray(value)), _LONGEST_STRING)
    if peek.is_container(value):
        return _container(value, depth)
    return _object(value, depth)


def _integer(value: int) -> str:
    bits = int.bit_length(value)
    return int.__repr__(value) if bits <= _MOST_BITS else f"an integer of {bits:,} bits"


def _string(kind: Any, value: Any) -> str:
    length = kind.__len__(value)
    start = kind.__getitem__(value, slice(_LONGEST_STRING))
    more = f"… ({length:,} long)" if length > _LONGEST_STRING else ""
    return f"{kind.__repr__(start)}{more}"


def _shape(value: Any) -> str:
    try:
        if peek.is_a(value, np.ndarray):
            return shape_text(np.ndarray.shape.__get__(value))
        with torch._C.DisableTorchFunctionSubclass():
            return shape_text(value.shape)
    except RuntimeError:  # of a lazy parameter, or a nested tensor
        return ""


def _container(value: Any, depth: int) -> str:
    count = peek.length(value)
    kind = next(known for known in (*_BRACKETS, object) if peek.is_a(value, known))
    brackets = _BRACKETS.get(kind, "[]")
    inside = "…" if depth >= _DEEPEST and count else _inside(value, kind, count, depth)
    name = peek.class_name(type(value))
    shown = f"{brackets[0]}{inside}{brackets[1]}"
    return shown if type(value) in (list, tuple, dict, set) else f"{name}({shown})"


def _inside(value: Any, kind: type, count: int, depth: int) -> str:
    if kind is dict:
        some = [
            f"{text_of(key, depth + 1)}: {text_of(item, depth + 1)}"
            for key, item in peek.entries(value, _MOST_ITEMS)
        ]
    else:
        some = [text_of(item, depth + 1) for item in peek.items(value, _MOST_ITEMS)]
    if kind in (set, frozenset):
        some.sort()  # their order depends on the process
    more = [f"… {count - _MOST_ITEMS:,} more"] if count > _MOST_ITEMS else []
    comma = "," if kind is tuple and count == 1 else ""
    return ", ".join(some + more) + comma


def _object(value: Any, depth: int) -> str:
    kind = type(value)
    if peek.is_a(value, type):
        return f"class {peek.class_name(value)}"
    if kind is types.ModuleType:
        return f"module {attribute_text(value, '__name__')}"
    if kind in (types.FunctionType, types.BuiltinFunctionType):
        return f"{value.__qualname__}()"
    name = peek.class_name(kind)
    if depth >= _DEEPEST or peek.is_a(value, (nn.Module, Optimizer)):
        return name
    own = peek.attributes(value)
    if not own:
        return name if own is None else f"{name}()"
    public = [(key, held) for key, held in own.items() if _is_public(key)]
    some = [f"{key}={text_of(held, depth + 1)}" for key, held in public[:_MOST_ITEMS]]
    more = ["…"] if len(own) > len(some) else []
    return f"{name}({', '.join(some + more)})"


def attribute_text(value: Any, name: str) -> str:
    """Return an attribute that is a text."""
    held = peek.attribute(value, name)
    return cut(held, _LONGEST_STRING) if type(held) is str else ""


def _is_public(key: Any) -> bool:
    return type(key) is str and not key.startswith("_")
