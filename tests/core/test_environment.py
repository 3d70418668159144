"""Which changes of the environment come too late for a process that has begun."""

from __future__ import annotations

import pytest

from ddp_magic.core.environment import changed_too_late


@pytest.mark.parametrize(
    ("then", "now", "late"),
    [
        ({}, {}, []),
        ({"LD_PRELOAD": "a"}, {"LD_PRELOAD": "b"}, ["LD_PRELOAD"]),
        ({"TORCH_LOGS": "all"}, {}, ["TORCH_LOGS"]),
        ({}, {"PYTHONPATH": "/x", "MKL_NUM_THREADS": "1"}, ["MKL_NUM_THREADS", "PYTHONPATH"]),
        ({}, {"CUDA_VISIBLE_DEVICES": "1", "NCCL_DEBUG": "INFO", "HF_TOKEN": "x"}, []),
        ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}, []),
    ],
)
def test_only_what_is_read_early_is_late(
    then: dict[str, str], now: dict[str, str], late: list[str]
) -> None:
    assert changed_too_late(then, now) == late
