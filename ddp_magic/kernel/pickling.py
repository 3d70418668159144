"""What the notebook pickles for ranks, and unpickles from them, without importing torch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ddp_magic.core.parcel import NotForTravel, Parcel, Pickler, make_tensor
from ddp_magic.errors import UsageError

_TORCH = "torch"
_PLAIN = (int, float, complex, bool, str, bytes, type(None))


class NotebookPickler(Pickler):
    """Sends the tensors of a notebook that uses torch as tensors, and arrays as arrays."""

    def reduce(self, value: Any) -> Any:
        """Say how arrays and tensors travel."""
        if isinstance(value, np.ndarray) and type(value) is np.ndarray:
            return _contiguous(value).__reduce_ex__(5)
        torch = sys.modules.get(_TORCH)
        if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
            return _reduced_tensor(torch, value)
        return NotImplemented


def is_plain(value: Any) -> bool:
    """Tell whether a value can be made on any rank: a number, a string, an array of numbers."""
    return type(value) in _PLAIN or (type(value) is np.ndarray and not value.dtype.hasobject)


def open_parcel(name: str, parcel: Parcel) -> Any:
    """Return a value that a rank has sent.

    Raises
    ------
    UsageError
        It cannot be made here: it needs torch, which this process has not imported, or a module
        that is not here.
    """
    try:
        with _torch_stays_out():
            return parcel.open()
    except _NeedsTorch:
        raise UsageError(
            f"{name} needs torch, which this notebook has not imported",
            fix="pull the values in it, or import torch here first",
        ) from None
    except Exception as error:  # whatever the user's own __setstate__ raises, too
        raise UsageError(
            f"{name} cannot be made in the notebook: {type(error).__name__}: {error}"
        ) from None


class _NeedsTorch(Exception):
    """Not an `ImportError`: modules that can do without would be told so for good."""


class _Gate:
    """Lets this thread import anything but torch."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
        """Refuse torch, and leave the rest to others."""
        if name == _TORCH and threading.get_ident() == self._thread:
            raise _NeedsTorch


@contextmanager
def _torch_stays_out() -> Iterator[None]:
    if _TORCH in sys.modules:
        yield
        return
    gate: Any = _Gate()
    sys.meta_path.insert(0, gate)
    try:
        yield
    finally:
        sys.meta_path.remove(gate)


def _contiguous(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array of which nothing is copied into the pickle."""
    if array.flags.c_contiguous or array.flags.f_contiguous:
        return array
    return np.array(array, order="C")


def _reduced_tensor(torch: Any, tensor: Any) -> Any:
    kind = type(tensor)
    if kind not in (torch.Tensor, torch.nn.Parameter):
        return NotImplemented
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return NotImplemented
    if tensor.device.type == "meta":
        raise NotForTravel(tensor, "it has no values")
    values = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
    flat = values.reshape(-1).view(torch.uint8).numpy()
    how = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.requires_grad)
    return make_tensor, (flat, *how, kind is not torch.Tensor)
