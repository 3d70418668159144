"""Processes that are started with a mark, found again and ended whatever became of their parents.

And the memory of a process, as Linux accounts for it.
"""

from __future__ import annotations

import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from ddp_magic.forkserver.system import adopt_orphans

_MARK = "DDP_BENCHMARK_MARK"
_FOLDERS = (
    "IPYTHONDIR",
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
    "TMPDIR",
)
_END_GRACE_S = 2.0
_KILL_TIMEOUT_S = 10.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Memory:
    """The memory of one process.

    Attributes
    ----------
    name
        The process's name, as ``ps -o comm`` shows it.
    pss_bytes
        Its own pages, and of those shared by n processes the nth part.
    private_bytes
        Its own pages.
    """

    pid: int
    name: str
    pss_bytes: int
    private_bytes: int


@dataclass(frozen=True)
class Footprint:
    """The memory of all processes of a job: its ranks, the others, and the notebook's kernel."""

    ranks: Sequence[Memory]
    others: Sequence[Memory]
    kernel: Memory | None

    def figures(self) -> dict[str, float]:
        """Return in bytes: of a rank, of all others than ranks, of all, and of the kernel."""
        everyone = (*self.ranks, *self.others)
        return {
            "rank_pss": statistics.fmean(one.pss_bytes for one in self.ranks),
            "rank_private": statistics.fmean(one.private_bytes for one in self.ranks),
            "others_pss": sum(one.pss_bytes for one in self.others),
            "others": len(self.others),
            "total_pss": sum(one.pss_bytes for one in everyone),
            "total_private": sum(one.private_bytes for one in everyone),
            "kernel_pss": self.kernel.pss_bytes if self.kernel else 0,
        }


class Started:
    """All processes that are started with an environment; at the end none of them is left.

    Attributes
    ----------
    folder
        An empty folder, removed at the end.
    environment
        This process's with a mark, and with the folder in place of the user's Jupyter, IPython
        and temporary folders. gloo keeps to loopback, so that no host name is looked up.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="benchmark-", ignore_cleanup_errors=True)
        self.folder = self._folder.name
        self._mark = secrets.token_hex(8)
        adopt_orphans()  # their CPU time counts as this process's, and they can be waited for
        folders = {name: f"{self.folder}/{name.lower()}" for name in _FOLDERS}
        Path(folders["TMPDIR"]).mkdir()
        own = {_MARK: self._mark, "GLOO_SOCKET_IFNAME": "lo"}
        self.environment: dict[str, str] = {**os.environ, **folders, **own}

    def __enter__(self) -> Started:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for action, grace_s in ((None, _END_GRACE_S), ("terminate", _END_GRACE_S), ("kill", None)):
            for process in self.processes() if action else ():
                with suppress(psutil.NoSuchProcess):
                    getattr(process, action)()
            self._await_end(grace_s or _KILL_TIMEOUT_S)
        self._folder.cleanup()

    def _await_end(self, timeout_s: float) -> None:
        """Wait until none runs; those whose parents have gone are this process's to wait for."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            for child in psutil.Process().children():
                with suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)
            if not self.processes() or time.monotonic() > deadline_s:
                return
            time.sleep(_POLL_S)

    def processes(self) -> list[psutil.Process]:
        """Return those that run."""
        mark = f"{_MARK}={self._mark}".encode()
        return [process for process in psutil.process_iter() if _has_mark(process.pid, mark)]

    def memories(self) -> list[Memory]:
        """Return the memory of each."""
        found = (read_memory(process.pid) for process in self.processes())
        return [memory for memory in found if memory is not None]

    def footprint(
        self, ranks: Collection[int], kernel: int | None = None, apart: Collection[int] = ()
    ) -> Footprint:
        """Return the memory of all, given the process ids of ranks and kernel.

        Parameters
        ----------
        apart
            The process ids of those that count as none of them.
        """
        memories = [memory for memory in self.memories() if memory.pid not in apart]
        return Footprint(
            [memory for memory in memories if memory.pid in ranks],
            [memory for memory in memories if memory.pid not in (*ranks, kernel)],
            next((memory for memory in memories if memory.pid == kernel), None),
        )


def torch_processes() -> int:
    """Return how many processes have torch loaded: what they share counts less in each's PSS."""
    maps = (_read(process.pid, "maps") for process in psutil.process_iter())
    return sum(b"libtorch" in text for text in maps)


def read_memory(pid: int) -> Memory | None:
    """Return the memory of a process; None if it has ended."""
    lines = _read(pid, "smaps_rollup").decode().splitlines()[1:]
    if not lines:
        return None
    bytes_of = {name: 1024 * int(size) for name, size, *_ in map(str.split, lines)}
    private_bytes = bytes_of["Private_Clean:"] + bytes_of["Private_Dirty:"]
    name = _read(pid, "comm").decode(errors="replace").strip()
    return Memory(pid, name, bytes_of["Pss:"], private_bytes)


def _has_mark(pid: int, mark: bytes) -> bool:
    return mark in _read(pid, "environ").split(b"\0")


def _read(pid: int, name: str) -> bytes:
    """Return a file of a process; nothing if the process has ended."""
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
