"""Memory that is mapped, and holds no file open: `mmap.mmap` keeps one for as long as it lives.

A notebook that keeps a thousand pulled arrays would run out of them.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from typing import Any

_FAILED = ctypes.c_void_p(-1).value


def mapped(fd: int, size: int) -> memoryview:
    """Return what is in a file, as this process's own copy from where it is written to.

    Parameters
    ----------
    size
        In bytes; at least 1.

    Raises
    ------
    OSError
        The system has no room for it.
    """
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = libc.mmap(None, ctypes.c_size_t(size), access, mmap.MAP_PRIVATE, fd, ctypes.c_long(0))
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), f"{size:,} bytes could not be mapped")
    kind: Any = ctypes.c_char * size
    memory = kind.from_address(address)
    unmap = weakref.finalize(memory, libc.munmap, ctypes.c_void_p(address), ctypes.c_size_t(size))
    unmap.atexit = False  # something may still look at it then
    return memoryview(memory).cast("B")
