"""What a machine or a container has for ranks."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil
import pytest

from ddp_magic.kernel import machine


def test_without_limits_all_cores_and_all_memory_count(tmp_path: Path) -> None:
    assert machine.core_count(tmp_path) == len(os.sched_getaffinity(0))
    assert 0 < machine.free_bytes(tmp_path) <= psutil.virtual_memory().total


@pytest.mark.parametrize(("quota", "cores"), [("100000 100000", 1), ("50000 100000", 1)])
def test_a_containers_processors(tmp_path: Path, quota: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    assert machine.core_count(tmp_path) == cores


def test_a_container_without_a_quota_has_all_cores(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("max 100000")
    assert machine.core_count(tmp_path) == len(os.sched_getaffinity(0))


def test_a_containers_memory_counts_its_cache_as_free(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000")
    (tmp_path / "memory.current").write_text("900")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\n")
    assert machine.free_bytes(tmp_path) == 400


def test_the_first_version_of_cgroups(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("100000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("2000")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("1500")
    assert machine.core_count(tmp_path) == 1
    assert machine.free_bytes(tmp_path) == 500


def test_no_limit_of_the_first_version_is_a_huge_number(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("1500")
    assert machine.free_bytes(tmp_path) > 2000


def test_a_reserved_port_is_for_whoever_is_told_of_it() -> None:
    with machine.reserve_port() as reserved, socket.socket() as other:
        port = reserved.getsockname()[1]
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("", port))
        other.listen()
        with machine.reserve_port() as second:
            assert second.getsockname()[1] != port
