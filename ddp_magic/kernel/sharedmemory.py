"""Memory that this process shares with ranks on the same machine, for one transfer.

It has no name (Linux's memfd): a rank opens it by way of this process's ``/proc/<pid>/fd``, which
none but this user may. So nothing can be left behind, whoever dies, and the size of /dev/shm, 64 MB
in a container, does not matter.
"""

from __future__ import annotations

import os
import secrets
from types import TracebackType
from typing import Any

from ddp_magic.core.mapping import mapped
from ddp_magic.core.parcel import Parcel, Span, write


class SharedMemory:
    """Some bytes; `close` gives them back as soon as nobody maps them."""

    def __init__(self) -> None:
        self._token = f"ddp-{secrets.token_hex(8)}"
        self._fd = os.memfd_create(self._token, os.MFD_CLOEXEC)

    @staticmethod
    def is_available() -> bool:
        """Whether this system has such memory."""
        return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")

    @property
    def address(self) -> dict[str, Any]:
        """What a rank needs to open it; the token shows that it is this and no other file."""
        return {"path": f"/proc/{os.getpid()}/fd/{self._fd}", "token": self._token}

    def write(self, parcel: Parcel) -> list[Span]:
        """Write a parcel; return where its parts are."""
        spans = parcel.spans()
        write(parcel.parts, spans, lambda part, at: os.pwrite(self._fd, part, at))
        return spans

    def view(self) -> memoryview:
        """Return what is in it, to be written to as well, as this process's own."""
        return mapped(self._fd, os.fstat(self._fd).st_size)

    def close(self) -> None:
        """Need it no more."""
        os.close(self._fd)

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
