"""What this machine, or the container that this process runs in, has for the ranks."""

from __future__ import annotations

import math
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_UNLIMITED_BYTES = 2**60  # how the first version of cgroups says that there is no limit


def core_count(cgroups: Path = _CGROUPS) -> int:
    """Return how many cores this process may keep busy: its affinity, or less in a container."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quotas = [quota for folder in _folders(cgroups, "cpu") if (quota := _cpu_quota(folder))]
    return max(1, min(cores, math.ceil(min(quotas, default=cores))))


def free_bytes(cgroups: Path = _CGROUPS) -> int:
    """Return the memory that new processes can have: the machine's, or less in a container."""
    free = int(psutil.virtual_memory().available)
    for folder in _folders(cgroups, "memory"):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _UNLIMITED_BYTES:
            free = min(free, max(0, limit - used + _cache_bytes(folder)))
    return free


def free_tasks(cgroups: Path = _CGROUPS) -> int | None:
    """Return how many more processes and threads there may be; None: no limit that is known."""
    left = []
    for folder in _folders(cgroups, "pids"):
        most, now = _number(folder / "pids.max"), _number(folder / "pids.current")
        if most is not None and now is not None:
            left.append(most - now)
    most_of_user, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.getuid() != 0 and most_of_user != resource.RLIM_INFINITY:  # root is held to none
        left.append(most_of_user - _tasks_of(os.getuid()))
    return max(0, min(left)) if left else None


def reserve_port() -> socket.socket:
    """Return a socket that keeps a port of the loopback interface from being given to others.

    It does not listen, so whoever is told the port (MASTER_PORT) can still listen there.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def _folders(cgroups: Path, controller: str) -> Iterator[Path]:
    """Yield where this process's limits are, in both versions of cgroups."""
    yield cgroups
    yield cgroups / controller
    lines = _OWN_CGROUP.read_text().splitlines() if _OWN_CGROUP.exists() else []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if not controllers or controller in controllers.split(","):
            yield cgroups / (controllers and controller) / path.lstrip("/")


def _cpu_quota(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    if quota is None and (folder / "cpu.max").exists():
        words = (folder / "cpu.max").read_text().split()
        quota, period = (int(word) if word.isdecimal() else None for word in words)
    return quota / period if quota and period and quota > 0 else None


def _cache_bytes(folder: Path) -> int:
    """Return what is used for files' contents, which the system gives up when asked."""
    stat = folder / "memory.stat"
    lines = stat.read_text().splitlines() if stat.exists() else []
    values = dict(line.split() for line in lines)
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))


def _tasks_of(user: int) -> int:
    """Return how many threads a user's processes have; of each process, one at least."""
    shown = psutil.process_iter(["uids", "num_threads"])
    theirs = (one.info for one in shown if one.info["uids"] and one.info["uids"].real == user)
    return sum(info["num_threads"] or 1 for info in theirs)


def _number(path: Path) -> int | None:
    """Return the number in a file; None without the file, or if it says ``max``."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
