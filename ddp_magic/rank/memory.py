"""How much memory this rank takes."""

from __future__ import annotations

import os

import torch

_STATM = "/proc/self/statm"


def own_memory_bytes() -> int:
    """Return the memory of this process that it shares with no other, about."""
    try:
        with open(_STATM) as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except OSError:
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def device_memory_bytes(device: str) -> tuple[int, int] | None:
    """Return what torch has allocated on this rank's GPU, and what that has; None on the CPU."""
    place = torch.device(device)
    if place.type != "cuda" or not torch.cuda.is_initialized():
        return None
    return torch.cuda.memory_reserved(place), torch.cuda.get_device_properties(place).total_memory
