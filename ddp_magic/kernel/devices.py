"""Counts the GPUs that ranks could use, without torch and without a context on any of them."""

from __future__ import annotations

import pynvml


def gpu_count() -> int:
    """Return how many GPUs this machine's NVIDIA driver reports, 0 where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()
