"""What a data set or sampler tells about itself: does it divide the data by rank already?"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

_CALLS: Final = {"get_rank", "get_world_size", "split_by_node", "split_dataset_by_node"}
_VARIABLES: Final = {"RANK", "WORLD_SIZE"}
_TELLING: Final = ({"num_replicas"}, {"rank", "world_size"}, {"num_processes", "process_index"})
_LIBRARY: Final = ("torch", "builtins", "typing", "abc", "collections")
_INNER: Final = ("sampler", "batch_sampler", "dataset")
_PROBES: Final = 64
_VALUES: Final = 8
_DENSE: Final = (None, torch.strided)


def divides_by_rank(thing: Any, depth: int = 4) -> bool:
    """Return whether a sampler or data set, or one within it, knows of ranks.

    Seen by its fields (``num_replicas``, or ``rank`` with ``world_size``) and by its class's code
    (``get_rank()``, ``os.environ["RANK"]``); nothing is called.
    """
    fields = getattr(thing, "__dict__", {})
    if "_distributed" in fields:  # Hugging Face's data sets, whose code knows ranks in any case
        return fields["_distributed"] is not None
    if any(names <= {*fields, *dir(type(thing))} for names in _TELLING):
        return True
    if _code_knows_ranks(type(thing)):
        return True
    return depth > 0 and any(divides_by_rank(inner, depth - 1) for inner in _inner(fields))


def describe(data: Any) -> Any:
    """Return a small value, with a ``repr``, that differs where two ranks hold different data.

    Cheap whatever the size: lengths, and some of the indices or rows, without loading a sample.
    """
    name = type(data).__qualname__
    if isinstance(data, Subset):
        return name, describe(data.indices), describe(data.dataset)
    if isinstance(data, ConcatDataset):
        return name, [describe(part) for part in data.datasets]
    if isinstance(data, TensorDataset):
        return name, [describe(tensor) for tensor in data.tensors]
    if isinstance(data, (torch.Tensor, np.ndarray)):
        return tuple(data.shape), _some_rows(data)
    if isinstance(data, (list, tuple, range)):
        return name, len(data), [_some_values(data[i]) for i in _positions(len(data))]
    size = len(data) if hasattr(data, "__len__") else None
    return name, size, [(key, describe(value)) for key, value in _fields(data)]


def _fields(data: Any) -> list[tuple[str, Any]]:
    """Return what a data set of the user's own holds: its lists, arrays and tensors."""
    held = getattr(data, "__dict__", {})
    kinds = (list, tuple, range, torch.Tensor, np.ndarray)
    return [(key, held[key]) for key in sorted(held) if isinstance(held[key], kinds)]


def _positions(size: int) -> list[int]:
    return sorted({*range(0, size, max(1, size // _PROBES)), size - 1}) if size else []


def _some_rows(rows: torch.Tensor | np.ndarray[Any, Any]) -> Any:
    if rows.ndim == 0 or rows.dtype == object or getattr(rows, "layout", None) not in _DENSE:
        return str(rows.dtype)
    picked = rows[_positions(len(rows))]
    return picked.reshape(len(picked), -1)[:, :_VALUES].tolist() if 0 not in rows.shape else []


def _some_values(item: Any) -> Any:
    if isinstance(item, (int, float, str, np.number)):
        return str(item)
    if isinstance(item, (list, tuple)):
        return [_some_values(part) for part in item[:_VALUES]]
    if isinstance(item, (torch.Tensor, np.ndarray)):
        return describe(item.reshape(-1)[:_VALUES])
    return type(item).__qualname__


def _inner(fields: dict[str, Any]) -> Iterator[Any]:
    yield from (fields[name] for name in _INNER if name in fields)
    parts = fields.get("datasets")
    yield from parts if isinstance(parts, (list, tuple)) else ()


def _code_knows_ranks(cls: type) -> bool:
    return any(
        _knows_ranks(code)
        for base in cls.__mro__
        if base.__module__.partition(".")[0] not in _LIBRARY
        for code in _codes(vars(base).values())
    )


def _codes(members: Iterable[Any]) -> Iterator[types.CodeType]:
    for member in members:
        function = getattr(member, "__func__", member)
        if isinstance(function, types.FunctionType):
            yield function.__code__


def _knows_ranks(code: types.CodeType) -> bool:
    names = {*code.co_names, *code.co_varnames}
    constants = {value for value in code.co_consts if isinstance(value, str)}
    if names & _CALLS or constants & _VARIABLES or any(telling <= names for telling in _TELLING):
        return True
    return any(_knows_ranks(inner) for inner in code.co_consts if isinstance(inner, types.CodeType))
