"""What `%ddp vars` shows of a variable: little work, whatever it is, and none of its own code."""

from __future__ import annotations

import fnmatch
import math
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_magic.core.vartable import Summary
from ddp_magic.rank import peek
from ddp_magic.rank.flat import (
    Flat,
    FlatArray,
    FlatTensor,
    digest,
    numbers_of,
    octets_of,
    sample,
    why_unreadable,
)
from ddp_magic.rank.parts import Limits, Taken, tensors_of
from ddp_magic.rank.wording import cut, text_of

_WHOLE = 65_536  # elements of a tensor up to which all are looked at
_SAMPLED = 16_384  # of a larger one
_WITHIN = 2_048  # of one that lies in a model or a container
_FEW = 6  # elements that are shown
_MOST_PARTS = 500  # of a container or an object
_MOST_ITEMS = 10_000  # of one container: numbers in a list are taken together
_MOST_TENSORS = 5_000  # of a model, or of an optimizer's state
_IMPORTED = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)


def chosen(variables: Mapping[str, Any], pattern: str) -> dict[str, Any]:
    """Return the variables that a pattern (as of file names) names; by ``""``, the user's data."""
    if pattern:
        return {
            name: value
            for name, value in variables.items()
            if fnmatch.fnmatchcase(name, pattern)
            and (pattern.startswith("_") or not name.startswith("_"))
        }
    return {
        name: value
        for name, value in variables.items()
        if not name.startswith("_") and not peek.is_a(value, _IMPORTED)
    }


def summary(value: Any) -> Summary:
    """Return what is shown of a variable."""
    with torch._C.DisableTorchFunctionSubclass():
        return _summary(value)


def _summary(value: Any) -> Summary:
    kind = peek.class_name(type(value))
    if peek.is_a(value, Tensor) and (why := why_unreadable(value)):
        return Summary(kind, why, b"", is_whole=False)
    if (flat := _flat(value)) is not None:
        return _of_elements(kind, value, flat)
    taken = Taken(*_within(value))
    content = digest(b"\0".join(sorted(map(_digested, taken))))  # a dict's order is no difference
    size, text = _size(value), _text(value)
    return Summary(kind, text, content, taken.is_whole, size_bytes=size)


def _within(value: Any) -> tuple[Any, Limits]:
    """Return what is looked into, and how far: of a model the tensors alone."""
    if peek.is_a(value, nn.Module):
        return dict(tensors_of(value)) | {"training": peek.attribute(value, "training")}, _OF_MODEL
    return value, _OF_MODEL if peek.is_a(value, Optimizer) else _LIMITS


def _flat(value: Any) -> Flat | None:
    if peek.is_a(value, Tensor):
        return FlatTensor(value)
    if peek.is_a(value, np.ndarray):
        array = FlatArray(value)
        return None if array.holds_objects else array
    return None


def _of_elements(kind: str, value: Any, flat: Flat) -> Summary:
    most = flat.count if flat.count <= _WHOLE else _SAMPLED
    some = sample(flat, most)
    is_whole = flat.count <= _WHOLE
    return Summary(
        type=kind,
        text=_in_numbers(numbers_of(flat, some), flat, "" if is_whole else "≈ "),
        digest=digest(octets_of(some)),
        is_whole=is_whole,
        shape=str(tuple(flat.shape)),
        dtype=flat.dtype,
        device=str(value.device) if peek.is_a(value, Tensor) else "",
        size_bytes=flat.count * flat.item_bytes,
    )


def _in_numbers(numbers: np.ndarray[Any, Any] | None, flat: Flat, about: str) -> str:
    """Return the few elements that there are, or what they come to."""
    if numbers is None:
        return ""
    if flat.count <= _FEW:
        texts = [f"{one:.6g}" if one.dtype.kind in "fc" else str(one) for one in numbers]
        return ", ".join(texts) if flat.shape else texts[0]
    if numbers.dtype.kind == "b":
        return f"{about}{numbers.mean():.0%} True"
    size = np.abs(numbers) if numbers.dtype.kind == "c" else numbers.astype(np.float64)
    good = size[np.isfinite(size)]
    parts = []
    if good.size:
        norm = math.sqrt(float(np.square(good).sum()) * flat.count / numbers.size)
        mean = (numbers if numbers.dtype.kind == "c" else good).mean()
        parts = [f"mean {about}{mean:.4g}", f"norm {about}{norm:.4g}"]
    for what, count in (("NaN", np.isnan(size).sum()), ("Inf", np.isinf(size).sum())):
        if count:
            of_sample = f" of {numbers.size:,} looked at" if about else ""
            parts.append(f"{count:,} {what}{of_sample}")
    return ", ".join(parts)


def _text(value: Any) -> str:
    if peek.is_a(value, nn.Module):
        return _of_module(value)
    if peek.is_a(value, Optimizer):
        groups = peek.attribute(value, "param_groups") or []
        rates = dict.fromkeys(text_of(dict.get(group, "lr")) for group in groups)
        of_groups = f", {len(groups)} groups" if len(groups) > 1 else ""
        return cut(f"lr {', '.join(rates)}{of_groups}", 80)
    if peek.is_container(value):
        return f"{peek.length(value):,}: {text_of(value)}"
    return text_of(value)


def _of_module(module: nn.Module) -> str:
    counts = [
        (tensor.numel(), tensor.requires_grad)
        for _, tensor in tensors_of(module)
        if peek.is_a(tensor, nn.Parameter) and not why_unreadable(tensor)
    ]
    total, trained = sum(n for n, _ in counts), sum(n for n, trains in counts if trains)
    frozen = "" if trained == total else f", {total - trained:,} frozen"
    mode = "" if peek.attribute(module, "training") else ", eval"
    return f"{total:,} parameters{frozen}{mode}"


def _size(value: Any) -> int | None:
    """Return the bytes of the tensors in it; of containers and plain values, their own."""
    if peek.is_a(value, nn.Module):
        return _bytes_of(tensor for _, tensor in tensors_of(value))
    if peek.is_a(value, Optimizer):
        states = peek.entries(peek.attribute(value, "state") or {})
        kept = (one for _, state in states if type(state) is dict for _, one in peek.entries(state))
        return _bytes_of(one for one in kept if peek.is_a(one, Tensor))
    if peek.is_container(value):
        held = (
            [v for _, v in peek.entries(value, _LIMITS.items)]
            if peek.is_a(value, dict)
            else (peek.items(value, _LIMITS.items))
        )
        return peek.own_bytes(value) + _bytes_of(one for one in held if peek.is_a(one, Tensor))
    if type(value) in (int, float, str, bytes, bytearray, complex):
        return sys.getsizeof(value)
    return None


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(
        tensor.numel() * tensor.element_size() for tensor in tensors if not why_unreadable(tensor)
    )


def _digested(part: Any) -> bytes:
    facets = sorted(part.facets.items())
    return repr((part.path, part.type, facets, part.digest, part.unseen)).encode(
        "utf-8", "surrogatepass"
    )


def _read_some(flat: Flat) -> tuple[bytes, bool]:
    return digest(octets_of(sample(flat, _WITHIN))), flat.count <= _WITHIN


_LIMITS = Limits(parts=_MOST_PARTS, items=_MOST_ITEMS, depth=20, octets=65_536, read=_read_some)
_OF_MODEL = replace(_LIMITS, parts=_MOST_TENSORS, items=_MOST_TENSORS)
