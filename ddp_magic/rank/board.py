"""A board in shared memory: the ranks of one host show each other what they are about to do.

To look at it takes a microsecond, and to wait at it is Python code, which Stop can end.

Each rank has a row: the number of the last cell that it has ended, how many entries it has made in
the present cell, and a ring of the latest entries, with their words.
"""

from __future__ import annotations

import mmap
import os
import zlib

_RING = 64  # entries of a rank that the others can still read
_ENDED, _COUNT, _FAILED, _WAITING, _ENTRIES = 0, 1, 2, 3, 4
_WORDS = _ENTRIES + _RING
_TEXT_BYTES = 256
_ROW_BYTES = 8 * _WORDS + _RING * _TEXT_BYTES
_NUMBER_BITS = 24
_CELL_BITS = 16


class Board:
    """This rank's row, and those of the others.

    Parameters
    ----------
    path
        A file in a folder that only this user can enter; made by whoever comes first.
    rank, world_size
        Whose row this is, of how many.
    """

    def __init__(self, path: str, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        size = world_size * _ROW_BYTES
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size)
            if hasattr(os, "posix_fallocate"):  # on a full disk a write would end the process
                os.posix_fallocate(fd, 0, size)
            self._memory = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._words = memoryview(self._memory).cast("Q")
        self._cell = 0

    def close(self) -> None:
        """Give the memory back."""
        self._words.release()
        self._memory.close()

    def begin_cell(self, cell: int) -> None:
        """Begin anew, with all ranks that run this cell."""
        self._cell = cell
        self._set(_WAITING, 0)
        self._set(_COUNT, cell << _NUMBER_BITS)

    def end_cell(self, failed: bool) -> None:
        """Show that this rank makes no more entries in this cell."""
        self._set(_FAILED, int(failed))
        self._set(_ENDED, self._cell)

    def has_ended(self, rank: int) -> bool:
        """Whether a rank has ended this cell."""
        return self._get(rank, _ENDED) == self._cell

    def has_failed(self, rank: int) -> bool:
        """Whether a rank that has ended this cell has failed in it."""
        return bool(self._get(rank, _FAILED))

    def has_room(self, number: int) -> bool:
        """Whether entry ``number`` may be made: nobody still has to read what it would replace."""
        if number <= _RING:
            return True
        least = (self._cell << _NUMBER_BITS) + number - _RING
        return all(
            self._get(rank, _COUNT) >= least or self.has_ended(rank)
            for rank in range(self.world_size)
        )

    def enter(self, number: int, text: str, kind: str) -> None:
        """Show entry ``number`` of this cell.

        Parameters
        ----------
        text
            What others are shown of it.
        kind
            What has to be alike on all ranks.
        """
        words = text.encode()[: _TEXT_BYTES - 1]
        start = _text_start(self.rank, number)
        self._memory[start : start + len(words) + 1] = words + b"\0"
        entry = self._stamp(number) << _NUMBER_BITS | zlib.crc32(kind.encode()) >> 8
        self._set(_ENTRIES + number % _RING, entry)
        self._set(_COUNT, (self._cell << _NUMBER_BITS) + number)

    def wait(self, number: int) -> None:
        """Show that this rank waits for the others' entry ``number``; 0: that it does not."""
        self._set(_WAITING, self._stamp(number) if number else 0)

    def waits_beyond(self, rank: int, number: int) -> bool:
        """Whether a rank waits for an entry that comes after ``number``."""
        waiting = self._get(rank, _WAITING)
        return waiting >> _NUMBER_BITS == self._cell % 2**_CELL_BITS and waiting > self._stamp(
            number
        )

    def has_entered(self, rank: int, number: int) -> bool:
        """Whether a rank has made entry ``number`` of this cell."""
        entry = self._get(rank, _ENTRIES + number % _RING)
        return entry >> _NUMBER_BITS == self._stamp(number)

    def is_alike(self, rank: int, number: int) -> bool:
        """Whether a rank's entry ``number`` is of this rank's kind."""
        place = _ENTRIES + number % _RING
        return self._get(rank, place) == self._get(self.rank, place)

    def text(self, rank: int, number: int) -> str:
        """Return the words of a rank's entry ``number``, which it has made."""
        start = _text_start(rank, number)
        words = self._memory[start : start + _TEXT_BYTES]
        return words.partition(b"\0")[0].decode(errors="replace")

    def _stamp(self, number: int) -> int:
        return (self._cell % 2**_CELL_BITS) << _NUMBER_BITS | number % 2**_NUMBER_BITS

    def _get(self, rank: int, index: int) -> int:
        return self._words[rank * (_ROW_BYTES // 8) + index]

    def _set(self, index: int, value: int) -> None:
        self._words[self.rank * (_ROW_BYTES // 8) + index] = value


def _text_start(rank: int, number: int) -> int:
    return rank * _ROW_BYTES + 8 * _WORDS + number % _RING * _TEXT_BYTES
