"""What a rank says of its memory and of its GPU, for which NVML and torch are stood in."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from ddp_magic.rank import memory


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    properties = SimpleNamespace(uuid="1-2", total_memory=80)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: properties)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda place: 7)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", _told({"GPU-1-2": (20, 80)}))
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetUtilizationRates", lambda handle: SimpleNamespace(gpu=93)
    )
    memory._handle.cache_clear()
    yield
    memory._handle.cache_clear()


def _told(known: dict[str, tuple[int, int]]) -> Any:
    return lambda handle: SimpleNamespace(used=known[handle][0], total=known[handle][1])


def _fails(*_: Any) -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_a_gpu_is_as_full_and_busy_as_nvml_says() -> None:
    assert memory.device_load("cuda:0") == {"device_bytes": (20, 80), "device_use": 0.93}


def test_a_gpu_that_does_not_tell_how_busy_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", _fails)
    assert memory.device_load("cuda:0") == {"device_bytes": (20, 80)}


def test_without_nvml_torch_says_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", _fails)
    assert memory.device_load("cuda:0") == {"device_bytes": (7, 80)}


def test_on_the_cpu_and_before_the_first_use_there_is_nothing_to_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert memory.device_load("cpu") == {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert memory.device_load("cuda:0") == {}


def test_the_processs_own_memory() -> None:
    assert memory.own_memory_bytes() > 2**20
