"""How what ranks hold is pickled for the notebook, which knows no torch."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from ddp_magic.core.parcel import NotForTravel, Pickler

_OF_TENSORS = (TensorDataset, Subset, ConcatDataset)
_DEPTH = 5  # of the parameter that an error names as an example


class RankPickler(Pickler):
    """Turns tensors into arrays, wherever they are; refuses models and optimizers.

    A dtype that NumPy lacks (bfloat16, float8) becomes float32, which holds every value.
    """

    def reduce(self, value: Any) -> Any:
        """Say how tensors, devices, dtypes and sizes travel."""
        if isinstance(value, Tensor):
            return self._as_array(value).__reduce_ex__(5)
        if type(value) is np.ndarray and not value.flags.forc:
            return np.array(value, order="C").__reduce_ex__(5)
        if isinstance(value, (torch.device, torch.dtype)):
            return str, (str(value),)
        if isinstance(value, torch.Size):
            return tuple, (list(value),)
        if isinstance(value, nn.Module):
            raise NotForTravel(value, _instead_of_model(value))
        if isinstance(value, (Optimizer, LRScheduler)):
            kind = "optimizer" if isinstance(value, Optimizer) else "scheduler"
            raise NotForTravel(value, f"run `state = {kind}.state_dict()` in a cell and pull state")
        if isinstance(value, DataLoader) or type(value) in _OF_TENSORS:
            raise NotForTravel(value, "its tensors would come as arrays: pull what it reads from")
        return NotImplemented

    def _as_array(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            raise NotForTravel(tensor, "it is not a plain tensor: pull what it consists of")
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise NotForTravel(tensor, "it is not dense: pull a dense copy of it")
        with torch._C.DisableTorchFunctionSubclass():
            plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
            dtype = _numpy_dtype(plain.dtype)
            if dtype is None:
                plain, dtype = plain.float(), np.dtype(np.float32)
        return _array_over(plain, dtype)


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any] | None:
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return None


def _array_over(tensor: Tensor, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array of the same memory; `Tensor.numpy` would forbid resizing it, for good."""
    if tensor.numel() == 0:
        return np.empty(tuple(tensor.shape), dtype)
    kind: Any = ctypes.c_char * tensor.nbytes
    memory = kind.from_address(tensor.data_ptr())
    memory.owner = tensor  # lives as long as the array does
    return np.frombuffer(memory, dtype).reshape(tuple(tensor.shape))


def _instead_of_model(module: nn.Module) -> str:
    example = _some_parameter(module, _DEPTH)
    such = f", such as {example}," if example else ""
    return (
        f"a model stays on its ranks; pull parameters of it{such} or run"
        " `state = model.state_dict()` in a %%ddp cell and pull state"
    )


def _some_parameter(module: nn.Module, depth: int) -> str:
    for name in module._parameters:
        return f".{name}"
    for name, child in module._modules.items() if depth else ():
        below = _some_parameter(child, depth - 1) if child is not None else ""
        if below:
            return (f"[{name}]" if name.isdecimal() else f".{name}") + below
    return ""
