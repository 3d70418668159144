"""What torch is, told to ``%ddp doctor`` by a process that is forked as ranks are."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def tell(config: dict[str, Any], ready: Callable[[dict[str, Any]], None]) -> None:
    """Tell how torch is built, without a look at any GPU.

    Parameters
    ----------
    config
        ``memory``: the address of memory that the notebook shares (see
        `ddp_magic.kernel.sharedmemory`); None: it has none.
    """
    ready({"torch": _torch(), "memory_error": _open_error(config["memory"])})


def tell_cuda(config: dict[str, Any], ready: Callable[[dict[str, Any]], None]) -> None:
    """Tell how many GPUs torch can use; it may take a while to find out."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    said = [str(one.message).splitlines()[0] for one in warned]
    ready({"count": count, "error": said[0] if said else ""})


def _torch() -> dict[str, Any]:
    has = dist.is_available()
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "nccl": _nccl() if has and dist.is_nccl_available() else "",
        "distributed": has,
        "gloo": has and dist.is_gloo_available(),
        "architectures": _architectures(),
    }


def _nccl() -> str:
    return ".".join(map(str, torch.cuda.nccl.version()))


def _architectures() -> list[str]:
    """Return what torch has code for; `torch.cuda.get_arch_list` may look at a GPU first."""
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    return flags.split() if flags else []


def _open_error(address: dict[str, str] | None) -> str:
    """Return why the notebook's memory cannot be opened from here; ``""`` if it can."""
    if address is None:
        return ""
    try:
        os.close(os.open(address["path"], os.O_RDWR))
    except OSError as error:
        return f"a rank cannot open the notebook's memory by /proc: {error.strerror}"
    return ""
