"""How much memory this rank takes, and how full and busy its GPU is."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pynvml
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


def device_load(device: str) -> dict[str, Any]:
    """Return how full and how busy this rank's GPU is, as NVML tells.

    Returns
    -------
    dict
        ``device_bytes``: used, by all processes, and there; ``device_use``: in which part of the
        last moment it computed, None where it does not tell. Empty on the CPU, or as long as the
        rank has not used the GPU.
    """
    place = torch.device(device)
    if place.type != "cuda" or not torch.cuda.is_initialized():
        return {}
    properties = torch.cuda.get_device_properties(place)
    try:
        handle = _handle(f"GPU-{properties.uuid}")
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        used = {"device_bytes": (int(memory.used), int(memory.total))}
    except pynvml.NVMLError:  # no NVIDIA GPU, or a part of one: torch knows what it took itself
        return {"device_bytes": (torch.cuda.memory_reserved(place), properties.total_memory)}
    try:
        return used | {"device_use": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100}
    except pynvml.NVMLError:  # a kind of GPU that does not tell
        return used


@cache
def _handle(uuid: str) -> Any:
    """Return what NVML calls a GPU; NVML is loaded by the rank, as it is not for a fork."""
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)
