"""What the machine, or the container, has for ranks."""

from __future__ import annotations

import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import psutil

from ddp_magic.core.doctor.machine import Capacity, HostName, Network, Room
from ddp_magic.kernel.machine import core_count, free_bytes, free_tasks

_LOOPBACK = "127.0.0.1"
_CONNECT_TIMEOUT_S = 0.5
_LEAST_S = 0.1  # to read what it has found long ago
_RESOLVE = (
    "import socket\n"
    "try: print(socket.getaddrinfo(socket.gethostname(), None)[0][4][0])\n"
    "except OSError as error: raise SystemExit(error.strerror)"
)


class NameLookup:
    """Looks for the address of this machine's name, in a process that can be ended.

    A look-up in this process could not: it may take half a minute where no name server answers.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _RESOLVE],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self, until_s: float) -> HostName:
        """Return what it has found, by about a time of the monotonic clock."""
        name = socket.gethostname()
        try:
            left_s = max(_LEAST_S, until_s - time.monotonic())
            out, error = self._process.communicate(timeout=left_s)
        except subprocess.TimeoutExpired:
            self.close()
            return HostName(name)
        return HostName(name, out.strip(), error.strip())

    def close(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.communicate()


def network(interface: str) -> Network:
    """Return whether processes can connect over the loopback interface."""
    stats = psutil.net_if_stats()
    if interface not in stats:
        return Network(interface, is_there=False)
    return Network(interface, is_up=stats[interface].isup, error=_connect_error())


def room(path: str) -> Room:
    """Return the space in a folder, and whether a file can be made there."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"0")
        usage = shutil.disk_usage(path)
    except OSError as error:
        return Room(path, error=error.strerror or str(error))
    return Room(path, usage.total, usage.free)


def temporary_room() -> Room:
    """Return the space where sessions have their folders."""
    try:
        return room(tempfile.gettempdir())
    except OSError as error:  # nowhere can a file be made
        return Room("TMPDIR, /tmp, /var/tmp", error=error.strerror or str(error))


def capacity(ranks: int) -> Capacity:
    """Return what there is for so many ranks."""
    return Capacity(
        ranks=ranks,
        cores=core_count(),
        free_bytes=free_bytes(),
        open_files=_limit(resource.RLIMIT_NOFILE, hard=True),
        tasks=free_tasks(),
        address_bytes=_limit(resource.RLIMIT_AS),
        file_bytes=_limit(resource.RLIMIT_FSIZE),
    )


def _limit(which: int, hard: bool = False) -> int | None:
    value = resource.getrlimit(which)[int(hard)]
    return None if value == resource.RLIM_INFINITY else value


def _connect_error() -> str:
    try:
        with socket.create_server((_LOOPBACK, 0)) as server:
            address = (_LOOPBACK, server.getsockname()[1])
            socket.create_connection(address, _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""
