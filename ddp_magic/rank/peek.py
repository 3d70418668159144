"""Looks into objects without running a line of the user's code.

No ``repr``, no property, no ``__getattr__``, ``__iter__`` or ``__len__`` of a class of theirs is
called: what such a method does may wait in a collective, fail, or be a hundred megabytes.
"""

from __future__ import annotations

import collections
import enum
import struct
import types
from itertools import islice
from typing import Any

_RETRIES = 10
COMPILED = (types.GetSetDescriptorType, types.MemberDescriptorType)
_NAME = type.__dict__["__name__"]
_QUALNAME = type.__dict__["__qualname__"]
_MODULE = type.__dict__["__module__"]
_MRO = type.__dict__["__mro__"]
_DICT = type.__dict__["__dict__"]
_BASE = type.__dict__["__base__"]
_SIZE = type.__dict__["__basicsize__"]
_POINTER_BYTES = struct.calcsize("P")


def is_a(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """Tell whether a value is of a class; `isinstance` would ask the value itself as well."""
    return issubclass(type(value), kinds)


def class_name(kind: type) -> str:
    """Return a class's name."""
    return str(_NAME.__get__(kind))


def full_name(kind: type) -> str:
    """Return a class's name with its module's."""
    return f"{_MODULE.__get__(kind)}.{_QUALNAME.__get__(kind)}"


def package(kind: type) -> str:
    """Return the package that a class is from."""
    return str(_MODULE.__get__(kind)).partition(".")[0]


def attributes(value: Any) -> dict[Any, Any] | None:
    """Return an object's own attributes, at this moment; None if it can have none."""
    found: dict[Any, Any] | None = None
    for base in _MRO.__get__(type(value)):
        members = _DICT.__get__(base)
        held = members.get("__dict__")
        if found is None and type(held) in COMPILED:
            found = dict(entries(held.__get__(value)))
        for name, member in members.items():
            if type(member) is types.MemberDescriptorType and package(base) != "builtins":
                found = {} if found is None else found
                try:
                    found.setdefault(name, member.__get__(value))
                except AttributeError:  # not set
                    continue
    return found


def holds_more(value: Any) -> bool:
    """Tell whether an object has more in it than its attributes: what compiled code keeps there."""
    for base in _MRO.__get__(type(value)):
        above = _BASE.__get__(base)
        if above is None:
            return False
        members = _DICT.__get__(base)
        slots = sum(type(member) is types.MemberDescriptorType for member in members.values())
        known = slots + ("__dict__" in members) + ("__weakref__" in members)
        if _SIZE.__get__(base) - _SIZE.__get__(above) > known * _POINTER_BYTES:
            return True
    return False


def class_members(kind: type) -> dict[str, Any]:
    """Return what a class itself defines."""
    return dict(_DICT.__get__(kind))


def is_of_cell(kind: type) -> bool:
    """Tell whether a class was defined in a cell."""
    return _MODULE.__get__(kind) == "__main__"


def exception_args(error: BaseException) -> Any:
    """Return what an exception was made with."""
    return BaseException.__dict__["args"].__get__(error)


def attribute(value: Any, name: str) -> Any:
    """Return one of an object's own attributes; None if it has none such."""
    return (attributes(value) or {}).get(name)


def entries(mapping: Any, most: int | None = None) -> list[tuple[Any, Any]]:
    """Return the first items of a dict, while another thread may change it."""
    for attempt in range(_RETRIES):
        try:
            return list(islice(dict.items(mapping), most))
        except RuntimeError:  # changed meanwhile
            if attempt == _RETRIES - 1:
                raise
    raise AssertionError


def items(values: Any, most: int | None = None) -> list[Any]:
    """Return the first elements of a list, tuple, deque or set, likewise."""
    for attempt in range(_RETRIES):
        try:
            return list(islice(_iterate(values), most))
        except RuntimeError:  # changed meanwhile
            if attempt == _RETRIES - 1:
                raise
    raise AssertionError


def length(value: Any) -> int:
    """Return how many elements a container of Python's own, or of a class derived from it, has."""
    return int(_base(value).__len__(value))


def own_bytes(value: Any) -> int:
    """Return the memory that it takes itself, without what it holds."""
    return int(_base(value).__sizeof__(value))


def is_container(value: Any) -> bool:
    """Tell whether it is one."""
    return is_a(value, _CONTAINERS)


def member_name(value: enum.Enum) -> str:
    """Return the name of an enum's member."""
    return f"{class_name(type(value))}.{attribute(value, '_name_')}"


_CONTAINERS = (dict, list, tuple, collections.deque, set, frozenset)


def _base(value: Any) -> Any:
    return next(kind for kind in (*_CONTAINERS, str, bytes, bytearray) if is_a(value, kind))


def _iterate(values: Any) -> Any:
    return _base(values).__iter__(values)
