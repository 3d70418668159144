"""What a test leaves behind: processes, threads, ports, files, a changed environment."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

RUN_VARIABLE = "DDP_MAGIC_TEST_RUN"  # inherited by every process that this run starts
_PREFIX = "ddp_magic-"
_GRACE_S = 5.0
_POLL_S = 0.02
# Processes that the standard library starts once and ends with this one.
_HELPERS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")
# Threads that a library starts once and keeps.
_LIBRARY_THREADS = ("GarbageCollectorThread", "TMonitor")
_PYTEST_VARIABLES = ("PYTEST_CURRENT_TEST",)


@dataclass(frozen=True)
class Snapshot:
    """What there is at one moment."""

    processes: frozenset[int]
    threads: frozenset[threading.Thread]
    ports: frozenset[int]
    files: frozenset[Path]
    environment: dict[str, str]
    folder: str
    path: tuple[str, ...]


class LeakGuard:
    """Compares what there is with what there was.

    Parameters
    ----------
    run
        The value of `RUN_VARIABLE`, by which a process of this run is known even after its
        parent has ended.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._is_ours: dict[int, bool] = {}  # of every process there is

    def snapshot(self) -> Snapshot:
        return Snapshot(
            processes=self._processes(),
            threads=frozenset(filter(_counts, threading.enumerate())),
            ports=_listening_ports(),
            files=frozenset(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")),
            environment={k: v for k, v in os.environ.items() if k not in _PYTEST_VARIABLES},
            folder=os.getcwd(),
            path=tuple(sys.path),
        )

    @contextmanager
    def check(self) -> Iterator[None]:
        """Fail if something of what began meanwhile is left, and does not end in a moment."""
        before = self.snapshot()
        yield
        deadline = time.monotonic() + _GRACE_S
        while (leaks := self.leaks(before)) and time.monotonic() < deadline:
            threading.Event().wait(_POLL_S)
        if leaks:
            self._clean(before)
            pytest.fail("left behind:\n  " + "\n  ".join(leaks), pytrace=False)

    def leaks(self, before: Snapshot) -> list[str]:
        """Say what is there and was not, or has changed."""
        now = self.snapshot()
        changed = before.environment.items() ^ now.environment.items()
        found = [f"process {_describe(pid)}" for pid in self._started(before, now)]
        found += [f"thread {thread.name}" for thread in now.threads - before.threads]
        found += [f"listening port {port}" for port in now.ports - before.ports]
        found += [f"file {path}" for path in now.files - before.files]
        found += [f"environment variable {name}" for name in sorted({name for name, _ in changed})]
        if now.folder != before.folder:
            found.append(f"working directory {now.folder}")
        if now.path != before.path:
            found.append(f"sys.path, now {now.path}")
        return found

    def _clean(self, before: Snapshot) -> None:
        """End and put back what can be, so that one leak fails one test."""
        now = self.snapshot()
        for pid in self._started(before, now):
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        for name in now.environment.keys() - before.environment.keys():
            del os.environ[name]
        os.environ.update(before.environment)
        os.chdir(before.folder)
        sys.path[:] = before.path

    def _processes(self) -> frozenset[int]:
        """Return the processes of this run but for this one."""
        pids = set(psutil.pids())
        for pid in self._is_ours.keys() - pids:
            del self._is_ours[pid]
        for pid in pids - self._is_ours.keys():
            self._is_ours[pid] = _is_of_run(pid, self._run)
        return frozenset(pid for pid, is_ours in self._is_ours.items() if is_ours)

    def _started(self, before: Snapshot, now: Snapshot) -> list[int]:
        """Return the new processes, without those that belong to one that was there before."""
        return [
            pid
            for pid in now.processes - before.processes
            if not _is_helper(pid)
            and not _is_ended_orphan(pid)
            and before.processes.isdisjoint(_owners(pid))
        ]


def children() -> list[psutil.Process]:
    """Return all that runs below this process, but for the standard library's helpers."""
    own = psutil.Process().children()
    helpers = [one for one in own if _is_helper(one.pid)]
    theirs = {one for helper in helpers for one in (helper, *helper.children(recursive=True))}
    return [one for one in psutil.Process().children(recursive=True) if one not in theirs]


def _is_of_run(pid: int, run: str) -> bool:
    if pid == os.getpid():
        return False
    try:
        process = psutil.Process(pid)
        return process.environ().get(RUN_VARIABLE) == run or os.getpid() in _parents(process)
    except psutil.Error:
        return False


def _parents(process: psutil.Process) -> list[int]:
    return [parent.pid for parent in process.parents()]


def _owners(pid: int) -> list[int]:
    """Return the process's ancestors below this process, but for the standard library's."""
    try:
        parents = _parents(psutil.Process(pid))
    except psutil.Error:
        return []
    return [parent for parent in parents if not _is_helper(parent)]


def _is_helper(pid: int) -> bool:
    """Tell whether it is a helper itself: what it forks has its command line, not its parent."""
    try:
        process = psutil.Process(pid)
        command = " ".join(process.cmdline())
        return process.ppid() == os.getpid() and any(name in command for name in _HELPERS)
    except psutil.Error:
        return False


def _is_ended_orphan(pid: int) -> bool:
    """Tell whether it has ended, and is for another than this process to wait for."""
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE and process.ppid() != os.getpid()
    except psutil.NoSuchProcess:
        return True


def _describe(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        about = f"{pid} ({process.status()}, child of {process.ppid()}): {process.name()}"
        return f"{about} {' '.join(process.cmdline())[:200]}"
    except psutil.ZombieProcess:
        return f"{about}, not waited for"
    except psutil.NoSuchProcess:
        return f"{pid}, which has just ended"


def _counts(thread: threading.Thread) -> bool:
    # jupyter_core runs coroutines for blocking callers on a thread that it keeps, named so.
    is_runner = thread.name.endswith(" - runner")
    return type(thread).__name__ not in _LIBRARY_THREADS and not is_runner


def _listening_ports() -> frozenset[int]:
    connections = psutil.Process().net_connections("tcp")
    return frozenset(c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN)
