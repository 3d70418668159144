"""Frees a rank that is stuck in a collective which not every rank will join.

No function of torch's ends a collective of gloo that waits. It raises when its connection ends,
though, also deep within ``backward()``: so the connections of the process groups are shut down, on
another thread than the one that is stuck. The groups are of no use then and have to be made anew.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddp_magic.rank.patching import Patches

_Ends = tuple[Any, Any]  # the addresses of a connection, here and there
_FILES = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


class Guard:
    """Knows the connections of this process's groups, and can end them.

    Attributes
    ----------
    has_subgroups
        Whether the user has made groups beside the session's own.
    """

    def __init__(self) -> None:
        self.has_subgroups = False
        self._ports: set[int] = set()  # at which the groups take connections from other ranks
        self._connections: set[_Ends] = set()  # that were made with the groups
        self._patches = Patches()

    def install(self) -> None:
        """Take note of the groups that the user makes, and of waits for what goes on meanwhile."""
        self._patches.replace(distributed_c10d, "_new_process_group_helper", self._noting_call)
        self._patches.replace(dist.Work, "wait", self._named_wait)

    def uninstall(self) -> None:
        """Give torch its functions back."""
        self._patches.undo()

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Take note of the groups that are made within."""
        ports, connections = _listening_ports(), _connections()
        try:
            yield
        finally:
            self._ports |= _listening_ports() - ports
            self._connections = self._connections & connections | _connections() - connections

    def free(self) -> None:
        """End what this rank waits for; what it is stuck in raises. May be called on any thread.

        Connections that were made later than a group are known at one end, by its port: so every
        rank does it.
        """
        for connection in _sockets():
            with suppress(OSError):  # it has gone meanwhile
                ends = connection.getsockname(), connection.getpeername()
                if ends in self._connections or ends[0][1] in self._ports:
                    connection.shutdown(socket.SHUT_RDWR)
        if "nccl" in str(dist.get_backend_config()):
            group = dist.group.WORLD
            assert group is not None
            group._get_backend(torch.device("cuda")).abort()

    def _noting_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def make_group(*args: Any, **kwargs: Any) -> Any:
            self.has_subgroups = True
            with self.noting():
                return original(*args, **kwargs)

        return make_group

    def _named_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def wait(*args: Any, **kwargs: Any) -> Any:
            """Be seen on the stack, by `ddp_magic.rank.where`."""
            return original(*args, **kwargs)

        return wait


def _listening_ports() -> set[int]:
    return {one.getsockname()[1] for one in _sockets() if _listens(one)}


def _connections() -> set[_Ends]:
    found = set()
    for one in _sockets():
        with suppress(OSError):  # it has no other end
            found.add((one.getsockname(), one.getpeername()))
    return found


def _listens(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _sockets() -> Iterator[socket.socket]:
    """Yield a duplicate of each internet socket of this process."""
    for fd in map(int, os.listdir(_FILES)):
        with suppress(OSError):  # the folder's own file, which is closed by now
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                with socket.socket(fileno=os.dup(fd)) as one:
                    if one.family in (socket.AF_INET, socket.AF_INET6):
                        yield one
