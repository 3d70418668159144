"""How far the numbers of several ranks are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddp_magic.core.parts import Path

Blocks = Mapping[tuple[Path, int], Any]
_WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32}
Measured = tuple[float, float, int, int]


def measure(told: Sequence[Blocks]) -> dict[Path, Measured]:
    """Return, for each tensor, what its blocks on several ranks come to.

    Returns
    -------
    dict
        The largest difference, the largest relative one, how many elements differ in their bits,
        and how many were compared. What some rank did not tell, or in another shape, is left out.
    """
    found: dict[Path, Measured] = {}
    for key in told[0]:
        blocks = [one[key] for one in told if key in one]
        if len(blocks) < len(told) or len({(b.shape, b.dtype) for b in blocks}) > 1:
            continue
        largest, relative, differing, seen = found.get(key[0], (0.0, 0.0, 0, 0))
        of_block = _of_block(blocks)
        found[key[0]] = (
            max(largest, of_block[0]),
            max(relative, of_block[1]),
            differing + of_block[2],
            seen + of_block[3],
        )
    return found


def _of_block(blocks: Sequence[np.ndarray[Any, Any]]) -> Measured:
    first = blocks[0]
    bits = _bits(first)
    differs = np.zeros(first.size, dtype=bool)
    for block in blocks[1:]:
        for word, of_first in zip(_bits(block).T, bits.T, strict=True):
            differs |= word != of_first
    count = int(differs.sum())
    if not count:
        return 0.0, 0.0, 0, first.size
    picked = np.stack([_wide(block[differs]) for block in blocks])
    largest, relative = _apart(picked)
    return largest, relative, count, first.size


def _apart(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return the largest difference along the first axis, and that relative to the larger one."""
    if values.dtype.kind == "c":
        parts = _apart(values.real), _apart(values.imag)
        return max(one for one, _ in parts), max(one for _, one in parts)
    finite = np.isfinite(values)
    good = finite.all(axis=0)
    odd = values[:, ~good]
    same = (odd == odd[0]) | (np.isnan(odd) & np.isnan(odd[0]))
    if not same.all():
        return float("inf"), float("inf")
    values = values[:, good]
    if not values.size:
        return 0.0, 0.0
    apart = values.max(axis=0) - values.min(axis=0)
    scale = np.abs(values).max(axis=0)
    relative = np.divide(apart, scale, out=np.zeros_like(apart), where=scale > 0)
    return float(apart.max()), float(relative.max())


def _wide(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return numbers in a type in which a difference neither overflows nor is rounded much."""
    if values.dtype.kind == "c":
        return values.astype(np.complex128)
    return values.astype(np.longdouble if values.dtype.itemsize >= 8 else np.float64)


def _bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a row for each element, of as few words as hold its bits."""
    whole = np.ascontiguousarray(values)
    word = _WORDS.get(whole.itemsize, np.uint64)  # what is larger has 16 bytes
    return whole.view(word).reshape(whole.size, -1)
