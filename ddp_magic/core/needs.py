"""What ranks need of a machine before the user's own data: measured, and rounded up."""

from __future__ import annotations

from typing import Final

TORCH_BYTES: Final = 250 * 2**20  # of what ranks share
RANK_BYTES: Final = 80 * 2**20  # of a rank that trains
_CONTROLLER_FILES: Final = 100
_RANK_FILES: Final = 14  # of each rank, in the controller
_SHARED_TASKS: Final = 40  # processes and threads of what there is once
_RANK_TASKS: Final = 30


def memory_bytes(nproc: int, running: int = 0) -> int:
    """Return the memory that ``nproc`` ranks need, of which ``running`` are there already."""
    return (nproc - running) * RANK_BYTES + (0 if running else TORCH_BYTES)


def open_files(nproc: int) -> int:
    """Return how many files the process that needs most of them has open."""
    return _CONTROLLER_FILES + nproc * _RANK_FILES


def tasks(nproc: int) -> int:
    """Return how many processes and threads there are in all."""
    return _SHARED_TASKS + nproc * _RANK_TASKS
