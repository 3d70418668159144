"""Pickles what cells have made so that it means the same on another rank.

One graph: what two variables share is shared on the other side, tensors down to their storages,
which travel beside the pickle. A function sees the variables that are there, as if its cell had run
there; so nothing that it merely names is taken along. What belongs to this process (its device,
its process group, an open file) becomes the other's own, or cannot move.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import importlib
import io
import marshal
import pickle
import socket
import subprocess
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch
import torch.distributed as dist
from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

_SENTINELS = {  # one of each is there; a copy would be another one
    id(getattr(dataclasses, name)): name for name in ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY")
}
_LOCKS: dict[type, Callable[[], Any]] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
}
_CPU = torch.device("cpu")
_CACHED = type(functools.lru_cache(len))
_SLOTS = ("__qualname__", "__module__", "__doc__", "__annotations__", "__defaults__")
_UNMOVABLE: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (types.GeneratorType, "a generator"),
    ((types.CoroutineType, types.AsyncGeneratorType), "a coroutine"),
    (_BaseDataLoaderIter, "an iterator of a DataLoader"),
    (io.IOBase, "an open file"),
    (socket.socket, "a socket"),
    (threading.Thread, "a thread"),
    (subprocess.Popen, "a process"),
    (dist.ProcessGroup, "a process group"),
    ((types.FrameType, types.TracebackType), "a traceback"),
)

Reduced = tuple[Any, ...] | str


class UnmovableError(pickle.PicklingError):
    """What belongs to one process; the message says what it is.

    Attributes
    ----------
    value
        The thing itself.
    """

    def __init__(self, what: str, value: Any) -> None:
        super().__init__(what)
        self.value = value


class GraphPickler(cloudpickle.Pickler):
    """Writes values, one `dump` after the other, that share what they share.

    Parameters
    ----------
    rank, device
        Of this process: what they mean there are that process's own.
    own_hooks
        Numbers (``RemovableHandle.id``) of this package's hooks on tensors, which stay here.

    Attributes
    ----------
    storages
        What the tensors written so far consist of, and where that is to be; ``""``: on the
        rank's own device.
    """

    def __init__(
        self, file: io.BytesIO, rank: int, device: torch.device, own_hooks: Collection[int] = ()
    ) -> None:
        super().__init__(file, protocol=5)
        self.storages: list[tuple[torch.UntypedStorage, str]] = []
        self._numbers: dict[int, int] = {}
        self._rank = rank
        self._device = device
        self._own_hooks = own_hooks
        self._namespace = namespace()
        self._scopes: dict[int, _Scope] = {}

    def persistent_id(self, value: Any) -> Any:
        """Take a storage aside, once."""
        dtype = None
        if isinstance(value, torch.storage.TypedStorage):
            value, dtype = value._untyped_storage, value.dtype
        elif not isinstance(value, torch.UntypedStorage):
            return None
        number = self._numbers.setdefault(value._cdata, len(self.storages))
        if number == len(self.storages):
            place = "" if value.device == self._device else str(value.device)
            self.storages.append((value, place))
        return number, dtype

    def reducer_override(self, value: Any) -> Any:
        """Say how a value is made there; `NotImplemented` where pickle or cloudpickle know."""
        reducer = self._reducer_of(value)
        return super().reducer_override(value) if reducer is None else reducer(value)

    def _reducer_of(self, value: Any) -> Callable[[Any], Any] | None:
        if isinstance(value, types.FunctionType):
            return self._reduce_function
        if isinstance(value, type):
            return None
        for kind, reducer in _REDUCERS:
            if isinstance(value, kind):
                return functools.partial(reducer, self)
        if id(value) in _SENTINELS:
            return lambda one: _SENTINELS[id(one)]
        if value is getattr(builtins, "ddp", None):
            return lambda _: (getattr, (builtins, "ddp"))
        return None

    def _reduce_function(self, function: types.FunctionType) -> Any:
        if super().reducer_override(function) is NotImplemented:  # it is found by its name
            return NotImplemented
        scope, used = self._scope_of(function)
        cells = function.__closure__ or ()
        state = {
            "attributes": vars(function),
            "slots": {name: getattr(function, name) for name in _SLOTS},
            "kwdefaults": function.__kwdefaults__,
            "cells": [(cell, cell.cell_contents) for cell in cells if not _is_empty(cell)],
            "used": used,
        }
        code = marshal.dumps(function.__code__)  # with its file's name, as tracebacks need it
        made = (code, scope, function.__name__, function.__closure__)
        return _make_function, made, state, None, None, _set_function

    def _scope_of(self, function: types.FunctionType) -> tuple[Any, dict[str, Any]]:
        """Return what stands for a function's globals, and what must be brought along of them."""
        scope = function.__globals__
        if scope is self._namespace:
            return None, {}
        name = scope.get("__name__")
        if isinstance(name, str) and vars(sys.modules.get(name, object)) is scope:
            return name, {}
        names = _names_in(function.__code__)
        used = {key: scope[key] for key in scope.keys() & names}
        return self._scopes.setdefault(id(scope), _Scope(name)), used

    def _reduce_tensor(self, tensor: Tensor) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that hooks are left out: they are not
            if not tensor.is_leaf:
                return tensor.detach().__reduce_ex__(5)
            reduced: Any = tensor.__reduce_ex__(5)
        hooks = (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None))
        users = [[h for i, h in (some or {}).items() if i not in self._own_hooks] for some in hooks]
        if len(reduced) > 2 or (tensor.grad is None and not any(users)):
            return reduced
        return (*reduced, (tensor.grad, *users), None, None, _set_tensor)

    def _reduce_optimizer(self, optimizer: Optimizer) -> Any:
        """Take along its hooks and what a scheduler has put around ``step``, too."""
        kind = type(optimizer)
        if kind.__getstate__ is not Optimizer.__getstate__:
            return NotImplemented
        return _blank_optimizer, (kind,), vars(optimizer), None, None, _set_attributes

    def _reduce_module(self, module: nn.Module) -> Any:
        """Give a parametrized module, whose class torch has made for it alone, one there, too."""
        if not parametrize.is_parametrized(module) or "parametrizations" not in module._modules:
            return NotImplemented
        kind = type(module).__bases__[0]
        return _blank_module, (kind,), vars(module), None, None, _set_parametrized

    def _reduce_loader(self, loader: DataLoader[Any]) -> Any:
        """Leave out live workers; new ones are started for the next iteration."""
        reduced = loader.__reduce_ex__(5)
        if loader._iterator is None or not isinstance(reduced, tuple):
            return NotImplemented
        made, args, state, *rest = reduced
        return (made, args, {**state, "_iterator": None}, *rest)

    def _reduce_sampler(self, sampler: DistributedSampler[Any]) -> Any:
        reduced: Any = sampler.__reduce_ex__(5)
        made, args, state, *rest = reduced
        if sampler.rank == self._rank:
            state = {**state, "rank": OwnRank()}
        return (made, args, state, *rest)

    def _reduce_device(self, device: torch.device) -> Any:
        return (own_device, ()) if device == self._device != _CPU else NotImplemented

    def _reduce_reference(self, reference: weakref.ref[Any]) -> Any:
        kept = type(reference) is weakref.ref
        return (_make_reference, (reference(),)) if kept else NotImplemented

    def _reduce_cached(self, cached: Any) -> Any:
        if cached.__module__ != "__main__":
            return NotImplemented
        return _make_cached, (cached.__wrapped__, cached.cache_parameters())

    def _reduce_lock(self, lock: Any) -> Any:
        return _LOCKS[type(lock)], ()

    def _reduce_cell(self, cell: types.CellType) -> Any:
        """Functions that share a variable go on to: a cell is filled by whoever has it."""
        return _empty_cell, ()

    def _reduce_group(self, group: dist.ProcessGroup) -> Any:
        if group is dist.group.WORLD:
            return _world_group, ()
        raise UnmovableError("a process group", group)

    def _reduce_file(self, file: Any) -> Any:
        for name in ("stdin", "stdout", "stderr"):
            if file is getattr(sys, name):
                return getattr, (sys, name)
        if isinstance(file, (io.BytesIO, io.StringIO)):
            return NotImplemented
        raise UnmovableError("an open file", file)

    def _reduce_shell(self, shell: InteractiveShell) -> Any:
        return get_ipython, ()

    def _refuse(self, value: Any) -> Any:
        raise UnmovableError(
            next(what for kind, what in _UNMOVABLE if isinstance(value, kind)), value
        )


_REDUCERS: tuple[tuple[Any, Callable[[GraphPickler, Any], Any]], ...] = (
    (Tensor, GraphPickler._reduce_tensor),
    (Optimizer, GraphPickler._reduce_optimizer),
    (nn.Module, GraphPickler._reduce_module),
    (DataLoader, GraphPickler._reduce_loader),
    (DistributedSampler, GraphPickler._reduce_sampler),
    (torch.device, GraphPickler._reduce_device),
    (types.CellType, GraphPickler._reduce_cell),
    (weakref.ref, GraphPickler._reduce_reference),
    (_CACHED, GraphPickler._reduce_cached),
    (tuple(_LOCKS), GraphPickler._reduce_lock),
    (dist.ProcessGroup, GraphPickler._reduce_group),
    (io.IOBase, GraphPickler._reduce_file),
    (InteractiveShell, GraphPickler._reduce_shell),
    *((kind, GraphPickler._refuse) for kind, _ in _UNMOVABLE),
)


class GraphUnpickler(pickle.Unpickler):
    """Reads what a `GraphPickler` wrote, one `load` after the other.

    Parameters
    ----------
    storages
        The other's, in this process and on its device.
    """

    def __init__(self, file: io.BytesIO, storages: Sequence[torch.UntypedStorage]) -> None:
        super().__init__(file)
        self._storages = storages

    def persistent_load(self, pid: tuple[int, torch.dtype | None]) -> Any:
        """Return a storage."""
        number, dtype = pid
        storage = self._storages[number]
        if dtype is None:
            return storage
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


class OwnRank:
    """Stands for the rank's own number, whichever rank it comes to."""

    def __init__(self, *, as_text: bool = False) -> None:
        self._as_text = as_text

    def __reduce__(self) -> Reduced:
        return own_rank, (self._as_text,)


class OwnNamespace:
    """Stands for the dict of all variables, as ``globals()`` returns it."""

    def __reduce__(self) -> Reduced:
        return namespace, ()


class _Scope:
    """Stands for the globals of functions whose module is not to be had by name: a script's."""

    def __init__(self, name: Any) -> None:
        self._name = name

    def __reduce__(self) -> Reduced:
        return _new_scope, (self._name,)


def namespace() -> dict[str, Any]:
    """Return the variables that cells see."""
    return vars(sys.modules["__main__"])


def own_rank(as_text: bool) -> int | str:
    """Return this rank's number."""
    return str(dist.get_rank()) if as_text else dist.get_rank()


def own_device() -> Any:
    """Return the device on which this rank trains."""
    return vars(builtins)["device"]


# ---- what makes things on the other side


def _make_function(
    code: bytes, scope: Any, name: str, closure: tuple[types.CellType, ...] | None
) -> types.FunctionType:
    if scope is None:
        scope = namespace()
    elif isinstance(scope, str):
        scope = vars(importlib.import_module(scope))
    return types.FunctionType(marshal.loads(code), scope, name, None, closure)


def _set_function(function: types.FunctionType, state: dict[str, Any]) -> None:
    vars(function).update(state["attributes"])
    function.__globals__.update(state["used"])
    function.__kwdefaults__ = state["kwdefaults"]
    for name, value in state["slots"].items():
        setattr(function, name, value)
    for cell, contents in state["cells"]:
        cell.cell_contents = contents


def _set_tensor(tensor: Tensor, state: tuple[Any, ...]) -> None:
    tensor.grad, backward_hooks, accumulated_hooks = state
    for hook in backward_hooks:
        tensor.register_hook(hook)
    for hook in accumulated_hooks:
        tensor.register_post_accumulate_grad_hook(hook)


def _blank_optimizer(kind: type[Optimizer]) -> Optimizer:
    """Return one whose class has got torch's hooks around ``step``, before that is referred to."""
    optimizer = kind.__new__(kind)
    optimizer._patch_step_function()
    return optimizer


def _blank_module(kind: type[nn.Module]) -> nn.Module:
    module = kind.__new__(kind)
    parametrize._inject_new_class(module)
    return module


def _set_parametrized(module: nn.Module, attributes: dict[str, Any]) -> None:
    vars(module).update(attributes)
    for name in attributes["_modules"]["parametrizations"]:
        parametrize._inject_property(module, name)


def _set_attributes(thing: Any, attributes: dict[str, Any]) -> None:
    vars(thing).update(attributes)


def _make_reference(value: Any) -> weakref.ref[Any]:
    return weakref.ref(_Scope("") if value is None else value)  # one that has died dies here too


def _make_cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _empty_cell() -> types.CellType:
    return types.CellType()


def _world_group() -> Any:
    return dist.group.WORLD


def _new_scope(name: Any) -> dict[str, Any]:
    return {"__name__": name, "__builtins__": builtins}


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _names_in(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names
