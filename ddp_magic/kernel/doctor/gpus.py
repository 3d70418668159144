"""What NVIDIA's driver tells of the GPUs, without a context on any of them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pynvml

from ddp_magic.core.doctor.gpus import Gpu, Gpus

_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # the class of GPUs, with and without an output
_NO_DRIVER = (
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_NOT_FOUND,
)


def gpus(in_use: bool, devices: Path = _DEVICES) -> Gpus:
    """Return what there is.

    Parameters
    ----------
    in_use
        Whether ranks of this notebook run on them.
    devices
        Where the system shows what is on the bus.
    """
    visible, in_machine = os.environ.get("CUDA_VISIBLE_DEVICES"), _on_bus(devices)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        told = "" if error.value in _NO_DRIVER else str(error)
        return Gpus(error=told, in_machine=in_machine, visible=visible)
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return Gpus(
            gpus=tuple(map(_gpu, handles)),
            driver=_text(pynvml.nvmlSystemGetDriverVersion()),
            cuda=_cuda(),
            in_machine=in_machine,
            visible=visible,
            in_use=in_use,
        )
    except pynvml.NVMLError as error:
        return Gpus(error=str(error), in_machine=in_machine, visible=visible)
    finally:
        pynvml.nvmlShutdown()


def _gpu(handle: object) -> Gpu:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
    )


def _cuda() -> tuple[int, int]:
    """Return the newest CUDA that the driver can; it tells 12040 for 12.4."""
    number = int(pynvml.nvmlSystemGetCudaDriverVersion())
    return number // 1000, number % 1000 // 10


def _on_bus(devices: Path) -> int:
    """Return how many of NVIDIA's GPUs are on the bus."""
    count = 0
    for device in devices.glob("*"):
        with suppress(OSError):
            is_nvidia = (device / "vendor").read_text().strip() == _NVIDIA
            count += is_nvidia and (device / "class").read_text().startswith(_DISPLAY)
    return count


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
