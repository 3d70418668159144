"""The variables of cells, packed on one rank and unpacked on another."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ddp_magic.rank.graphpickle import (
    GraphPickler,
    GraphUnpickler,
    OwnNamespace,
    OwnRank,
    UnmovableError,
    namespace,
)

# What IPython itself puts there (In, Out, the last inputs and results), and an ipyparallel engine
# for a call.
_OF_IPYTHON = re.compile(
    r"_+|_i+|_i?\d+|_exit_code|_[dio]h|In|Out|__\w+__|_[0-9a-f_]+_\d+_(f|args|kwargs|result)"
)
_SAYS_RANK = re.compile(  # not `lora_rank`
    r"((my|own|this|cur|current|local|global|world|dist|ddp|gpu|proc|process)_?)?rank(_id)?",
    re.IGNORECASE,
)
_LONGEST_REASON = 80
_LONGEST_PLAIN = 200

Plain = dict[str, Any]


@dataclass
class Bundle:
    """Variables on their way.

    Attributes
    ----------
    names
        In the order in which they were set.
    graph
        Their values and, after them, what comes ``along``, pickled one after the other.
    storages
        What their tensors consist of, and where that is to be; ``""``: on the rank's own device.
    left_out
        Why others did not come along, by name.
    """

    names: list[str] = field(default_factory=list)
    graph: memoryview = field(default_factory=lambda: memoryview(b""))
    storages: list[tuple[torch.UntypedStorage, str]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


class NotUnpacked(Exception):
    """A value that could not be made here: its name and why."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name, error)
        self.name = name
        self.reason = reason(error, None)


def variables(hidden: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's variables, without those that IPython keeps for itself.

    Parameters
    ----------
    hidden
        What IPython has put there (its ``user_ns_hidden``).
    """
    return {
        name: value
        for name, value in namespace().copy().items()  # a cell may run meanwhile
        if hidden.get(name, namespace) is not value and not _OF_IPYTHON.fullmatch(name)
    }


def plain(values: Mapping[str, Any]) -> Plain:
    """Return the numbers and short strings among them, which are compared between ranks."""
    return {
        name: value
        for name, value in values.items()
        if type(value) in (int, float, bool, str) and len(str(value)) <= _LONGEST_PLAIN
    }


def own_ranks(plains: Mapping[int, Plain], source: int) -> set[str]:
    """Return the names under which each of these ranks holds its own number."""
    return {
        name
        for name in plains[source]
        if _SAYS_RANK.fullmatch(name)
        and all(str(one.get(name)) == str(rank) for rank, one in plains.items())
    }


def differing(plains: Mapping[int, Plain], source: int) -> list[str]:
    """Return the names of plain values that are others on some of these ranks."""
    mine = plains[source]
    ours = own_ranks(plains, source)
    return [
        name
        for name, value in mine.items()
        if name not in ours
        and any(repr(one.get(name, value)) != repr(value) for one in plains.values())
    ]


def pack(
    values: Mapping[str, Any],
    own: set[str],
    make_pickler: Callable[[io.BytesIO], GraphPickler],
    along: Callable[[set[int]], Any],
    left_out: Mapping[str, str],
) -> Bundle:
    """Pack variables, those ``left_out`` and others that cannot move excepted.

    Parameters
    ----------
    own
        Names that are to hold the other rank's own number.
    along
        Returns what comes along, given the ids of all that was packed, to which it may refer.
    """
    left_out = dict(left_out)
    while True:
        file = io.BytesIO()
        pickler = make_pickler(file)
        names = [name for name in values if name not in left_out]
        for name in names:
            value = _standing_in(name, values[name], own)
            try:
                pickler.dump(value)
            except Exception as error:  # whatever the user's own __reduce__ raises, too
                left_out[name] = reason(error, value)
                break
        else:
            pickler.dump(along(set(pickler.memo.copy())))
            return Bundle(names, file.getbuffer(), pickler.storages, left_out)


def unpack(
    names: Sequence[str], graph: memoryview, storages: Sequence[torch.UntypedStorage]
) -> Any:
    """Set the variables of a `Bundle` here; return what came along.

    Raises
    ------
    NotUnpacked
        One cannot be made here.
    """
    unpickler = GraphUnpickler(io.BytesIO(graph), storages)
    for name in names:
        try:
            namespace()[name] = unpickler.load()  # at once, for those after it may need it
        except Exception as error:  # whatever the user's own __setstate__ raises, too
            for set_before in names:
                namespace().pop(set_before, None)
            raise NotUnpacked(name, error) from error
    along = unpickler.load()
    torch._utils._validate_loaded_sparse_tensors()
    return along


def without_graph(values: Mapping[str, Any]) -> list[str]:
    """Return the names of tensors whose values move without how they were computed."""
    return [n for n, v in values.items() if isinstance(v, Tensor) and v.grad_fn is not None]


def reason(error: Exception, value: Any) -> str:
    """Say in a few words why something does not move."""
    if isinstance(error, UnmovableError):
        return str(error) if error.value is value else f"holds {error}"
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"


def _standing_in(name: str, value: Any, own: set[str]) -> Any:
    if value is namespace():
        return OwnNamespace()
    if name in own:
        return OwnRank(as_text=isinstance(value, str))
    return value
