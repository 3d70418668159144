"""The elements of tensors and arrays, one after the other, as bytes and as numbers.

Read in blocks, wherever they lie and however they are strided, so that nothing as large as the
whole is made of a contiguous one. Nothing here runs a tensor class's own code.
"""

from __future__ import annotations

import hashlib
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ddp_magic.core.parts import BLOCK
from ddp_magic.errors import StateError
from ddp_magic.rank import peek

_DIGEST_BYTES = _WORD_BYTES = 8
_AT_ONCE = 64  # blocks that are brought from a GPU together
_PIECES = 64  # of a sample: so many places of the tensor are looked at
_EXPANDED_BYTES = 2**30  # above this, one that stands for far more than there is, is not read
_GPU_PATIENCE_S = 2.0
_POLL_S = 0.001
_UNLIKE_NUMBERS = "SUVMm"  # NumPy's kinds: texts, records, times


class Flat(Protocol):
    """Elements in their logical order.

    Attributes
    ----------
    count
        How many there are.
    shape, dtype, device
        Of the tensor or array; the device without its number.
    item_bytes
        What one takes.
    """

    count: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    item_bytes: int

    def read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Return elements, in the machine's memory."""

    def pick(self, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return those at positions."""


class FlatTensor:
    """Those of a tensor that `why_unreadable` has nothing against."""

    def __init__(self, tensor: Tensor) -> None:
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            plain = torch.Tensor.as_subclass(tensor, torch.Tensor).detach()
            self._tensor = plain.resolve_conj().resolve_neg()
        self._flat: Tensor | None = None
        self.count = self._tensor.numel()
        self.shape = tuple(self._tensor.shape)
        self.dtype = str(self._tensor.dtype).removeprefix("torch.")
        self.device = self._tensor.device.type
        self.item_bytes = self._tensor.element_size()

    def read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Return elements; of a tensor that is not contiguous, a copy is made once."""
        if self._flat is None:
            self._flat = self._tensor.reshape(-1)
        return _as_array(self._flat[start:stop].cpu())

    def pick(self, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return those at positions, and copy no others."""
        wanted = torch.from_numpy(positions).to(self._tensor.device)
        if self._tensor.is_contiguous():
            return _as_array(self._tensor.view(-1)[wanted].cpu())
        return _as_array(self._tensor[torch.unravel_index(wanted, self.shape)].cpu())


class FlatArray:
    """Those of a NumPy array or scalar that holds no objects."""

    device = "cpu"

    def __init__(self, array: Any) -> None:
        is_array = peek.is_a(array, np.ndarray)
        self._array = np.ndarray.view(array, np.ndarray) if is_array else np.asarray(array)
        self._flat: np.ndarray[Any, Any] | None = None
        self.count = self._array.size
        self.shape = self._array.shape
        self.dtype = str(self._array.dtype)
        self.item_bytes = self._array.itemsize
        self.holds_objects = self._array.dtype.hasobject

    def read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Return elements; of an array that is not contiguous, a copy is made once."""
        if self._flat is None:
            self._flat = self._array.reshape(-1)
        return self._flat[start:stop]

    def pick(self, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return those at positions, and copy no others."""
        return self._array.flat[positions]


def digests(flat: Flat) -> bytes:
    """Return eight bytes for each block of `BLOCK` elements, the same only if their bits are."""
    found = []
    for start in range(0, flat.count, BLOCK * _AT_ONCE):
        stop = min(flat.count, start + BLOCK * _AT_ONCE)
        octets = octets_of(flat.read(start, stop))
        step = BLOCK * flat.item_bytes
        found += [_checksum(octets[at : at + step]) for at in range(0, len(octets), step)]
    return b"".join(found)


def sample(flat: Flat, most: int) -> np.ndarray[Any, Any]:
    """Return all elements, or about ``most`` of them: always the same ones, all over it."""
    if flat.count <= most:
        return flat.read(0, flat.count)
    length = max(1, most // _PIECES)
    starts = np.linspace(0, flat.count - length, _PIECES).astype(np.int64)
    return flat.pick(np.unique((starts[:, None] + np.arange(length)).reshape(-1)))


def digest(octets: Any) -> bytes:
    """Return a checksum of bytes, which differs, but for one case in 2**64, where they do."""
    return hashlib.blake2b(octets, digest_size=_DIGEST_BYTES).digest()


def octets_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array's bytes."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _checksum(octets: np.ndarray[Any, Any]) -> bytes:
    """Return eight bytes: a CRC-32, and the sum of the words, folded.

    The CRC tells every change within 32 bits in a row, such as of one number, and any order; what
    changes more can escape it in one case in 2**32, and the sum, which has nothing in common with
    it, as rarely. Three gigabytes a second and core, of which blake2b makes one; other threads run
    meanwhile.
    """
    words = octets[: len(octets) // _WORD_BYTES * _WORD_BYTES].view(np.uint64)
    total = int(np.add.reduce(words))
    return struct.pack("<II", zlib.crc32(octets.data), (total ^ total >> 32) & 0xFFFFFFFF)


def numbers_of(flat: Flat, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Return elements that were read as numbers NumPy knows; None if they are none."""
    if array.dtype.kind in _UNLIKE_NUMBERS:
        return None
    known = getattr(torch, flat.dtype, None)
    if isinstance(known, torch.dtype) and isinstance(flat, FlatTensor) and _is_carried(known):
        return torch.from_numpy(array.copy()).view(known).float().numpy()
    return array


def why_unreadable(tensor: Tensor) -> str:
    """Say why a tensor's elements cannot be read here; ``""`` if they can."""
    kind = type(tensor)
    if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return f"computed by {peek.class_name(kind)}"
    if is_lazy(tensor):
        return "not initialized"
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
            return f"of layout {tensor.layout}"
        if tensor.device.type == "meta":
            return "on device meta"
        held, needed = tensor.untyped_storage().nbytes(), _extent(tensor)
        if held < needed:
            return "freed"
        reach = tensor.numel() * tensor.element_size()
        return "expanded from a smaller one" if reach > max(_EXPANDED_BYTES, 8 * held) else ""


@contextmanager
def beside_the_cell(device: torch.device) -> Iterator[None]:
    """Read tensors on another thread than the cell's, and wait for no more than was queued.

    Raises
    ------
    StateError
        The GPU does not come to an end with that.
    """
    if device.type != "cuda" or not torch.cuda.is_initialized():
        yield
        return
    with torch.cuda.device(device):
        queued = torch.cuda.Event()
        queued.record()
        until_s = time.monotonic() + _GPU_PATIENCE_S
        while not queued.query():
            if time.monotonic() > until_s:
                raise StateError(
                    f"{device} has been at what the cell gave it for {_GPU_PATIENCE_S:g} s:"
                    " it may wait for other ranks",
                )
            time.sleep(_POLL_S)
        with torch.cuda.stream(torch.cuda.Stream()):
            yield


def _extent(tensor: Tensor) -> int:
    """Return up to which byte of its storage a tensor reaches."""
    if not tensor.numel():
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.element_size()


def _as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor on the CPU as an array, of bytes' own type where NumPy has none such."""
    if _is_carried(tensor.dtype):
        return tensor.view(_CARRIERS[tensor.element_size()]).numpy()
    return tensor.numpy()


def _is_carried(dtype: torch.dtype) -> bool:
    """Tell whether NumPy has no such type: bfloat16, those of 8 bits."""
    return dtype is torch.bfloat16 or (dtype.is_floating_point and dtype.itemsize == 1)


_CARRIERS = {1: torch.uint8, 2: torch.int16}
