"""The machine, or the container: good and bad."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddp_magic.core.doctor.finding import Finding, Verdict
from ddp_magic.core.doctor.machine import (
    Capacity,
    HostName,
    Network,
    Room,
    check_cores,
    check_folder,
    check_host_name,
    check_limits,
    check_memory,
    check_network,
    check_shm,
    check_transfer,
)

_ENOUGH = Capacity(ranks=2, cores=2, free_bytes=8 * 2**30)
_GIB = 2**30


def _is(finding: Finding, verdict: Verdict, text: str, fix: str = "") -> None:
    assert finding.verdict is verdict
    assert text in finding.text
    assert fix in finding.fix
    assert finding.verdict is not Verdict.WRONG or finding.fix or "no loopback" in text


def test_the_network() -> None:
    _is(check_network(Network("lo")), Verdict.OK, "gloo connects ranks over lo")
    _is(check_network(Network("lo", is_there=False)), Verdict.WRONG, "no loopback interface lo")
    down = check_network(Network("lo", is_up=False))
    _is(down, Verdict.WRONG, "lo is down", "ip link set lo up")
    no_port = check_network(Network("lo", error="Cannot assign requested address"))
    _is(no_port, Verdict.WRONG, "Cannot assign requested address", "loopback interface up?")
    forbidden = check_network(Network("lo", error="Operation not permitted"))
    _is(forbidden, Verdict.WRONG, "no connection over lo", "firewall")


def test_the_host_name() -> None:
    _is(check_host_name(HostName("box", "10.0.0.5")), Verdict.OK, "box is 10.0.0.5")
    unknown = check_host_name(HostName("box", error="Name or service not known"))
    _is(unknown, Verdict.DEGRADED, "Name or service not known", "echo '127.0.1.1 box'")
    slow = check_host_name(HostName("box"))
    _is(slow, Verdict.DEGRADED, "takes long to find an address for box", "/etc/hosts")


@pytest.mark.parametrize(
    ("room", "verdict", "text", "fix"),
    [
        (Room("/dev/shm", 8 * _GIB, 7 * _GIB), Verdict.OK, "7.0 GiB of 8.0 GiB are free", ""),
        (Room("/dev/shm", 2**26, 2**26), Verdict.DEGRADED, "64 MiB of 64 MiB", "--shm-size=8g"),
        (Room("/dev/shm", 8 * _GIB, 2**20), Verdict.DEGRADED, "1 MiB of", "ls -l /dev/shm"),
        (Room("/dev/shm", error="Read-only file system"), Verdict.DEGRADED, "Read-only", "--ipc"),
    ],
)
def test_shared_memory(room: Room, verdict: Verdict, text: str, fix: str) -> None:
    _is(check_shm(room, gpu_count=0), verdict, text, fix)


def test_nccl_is_named_where_there_are_gpus() -> None:
    small = Room("/dev/shm", 2**26, 2**26)
    assert "NCCL" in check_shm(small, gpu_count=2).text
    assert "NCCL" not in check_shm(small, gpu_count=1).text


def test_the_folder_for_temporary_files() -> None:
    _is(check_folder(Room("/tmp", _GIB, _GIB)), Verdict.OK, "/tmp, 1.0 GiB are free")
    full = check_folder(Room("/tmp", _GIB, 2**20))
    _is(full, Verdict.WRONG, "/tmp, 1 MiB are free", "TMPDIR")
    foreign = check_folder(Room("/tmp", error="Permission denied"))
    _is(foreign, Verdict.WRONG, "/tmp: Permission denied", "Set TMPDIR to a folder of yours.")
    odd = check_folder(Room("/tmp", error="Input/output error"))
    _is(odd, Verdict.WRONG, "Input/output error", "set TMPDIR")


def test_memory() -> None:
    _is(check_memory(_ENOUGH), Verdict.OK, "8.0 GiB are free; 2 ranks need 410 MiB")
    little = check_memory(replace(_ENOUGH, free_bytes=2**28))
    _is(little, Verdict.WRONG, "256 MiB are free, and 2 ranks need 410 MiB", "-n")
    bounded = check_memory(replace(_ENOUGH, address_bytes=4 * _GIB))
    _is(bounded, Verdict.DEGRADED, "may address 4.0 GiB", "ulimit -v unlimited")


def test_cores() -> None:
    _is(check_cores(_ENOUGH), Verdict.OK, "2 cores for 2 ranks")
    _is(check_cores(replace(_ENOUGH, cores=1)), Verdict.DEGRADED, "1 core for 2 ranks", "-n")


@pytest.mark.parametrize(
    ("limits", "verdict", "text", "fix"),
    [
        ({}, Verdict.OK, "any number of open files a process, any number of processes", ""),
        ({"open_files": 1024, "tasks": 4000}, Verdict.OK, "1,024 open files a process, 4,000", ""),
        ({"open_files": 100}, Verdict.WRONG, "may open 100 files, and 2 ranks need 128", "-Hn"),
        ({"tasks": 50}, Verdict.WRONG, "50 more processes and threads are", "--pids-limit"),
        ({"file_bytes": 2**20}, Verdict.DEGRADED, "larger than 1 MiB", "ulimit -f unlimited"),
    ],
)
def test_limits(limits: dict[str, int], verdict: Verdict, text: str, fix: str) -> None:
    _is(check_limits(replace(_ENOUGH, **limits)), verdict, text, fix)


def test_the_transfer_of_variables() -> None:
    _is(check_transfer(""), Verdict.OK, "shared memory")
    _is(check_transfer("no memfd_create"), Verdict.DEGRADED, "through sockets", "memfd_create")
