"""The last that a process printed, where it outlives the process, and what of it did not come.

What Python prints is sent a moment later, by a thread: all of that is lost if the process ends
meanwhile. So it is also written to memory that is shared with the process's parent.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

_COUNT_BYTES = 8
_STREAMS = ("stdout", "stderr")
WRITTEN_KEY = "ddp_magic_written_bytes"  # of a stream's message: all that was written by then


class Tail:
    """The end of what was written to one stream.

    Parameters
    ----------
    memory
        Of zeros at first: a count of all bytes written, and a ring of the last of them.
    """

    def __init__(self, memory: memoryview) -> None:
        self._count = memory[:_COUNT_BYTES].cast("Q")
        self._ring = memory[_COUNT_BYTES:]
        self._size = len(self._ring)

    @property
    def written_bytes(self) -> int:
        """How much has been written so far."""
        return self._count[0]

    def write(self, data: bytes) -> None:
        """Keep what is written."""
        size, begin = self._size, self._count[0]
        at, end = begin % size, begin + len(data)
        if at + len(data) <= size:  # nearly always, and each `print` is several calls of this
            self._ring[at : at + len(data)] = data
        else:
            kept = data[-size:]
            at = (end - len(kept)) % size
            room = size - at
            self._ring[at : at + len(kept)] = kept[:room]
            self._ring[: max(0, len(kept) - room)] = kept[room:]
        self._count[0] = end

    def read(self) -> bytes:
        """Return the last that was written."""
        end = self.written_bytes
        if end <= self._size:
            return bytes(self._ring[:end])
        at = end % self._size
        return bytes(self._ring[at:]) + bytes(self._ring[:at])

    def to_wire(self) -> tuple[int, str]:
        """Return count and end as JSON can have them."""
        return self.written_bytes, base64.b64encode(self.read()).decode()


def tails(memory: memoryview) -> dict[str, Tail]:
    """Divide memory, of zeros at first, among the streams."""
    size = len(memory) // len(_STREAMS) // _COUNT_BYTES * _COUNT_BYTES
    parts = (memory[index * size : (index + 1) * size] for index in range(len(_STREAMS)))
    return {name: Tail(part) for name, part in zip(_STREAMS, parts, strict=True)}


class Received:
    """How much has come of what each rank printed."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[int, str], int] = {}
        self._ended: set[int] = set()

    def takes(self, rank: int, stream: str, written_bytes: int) -> bool:
        """Note that a message has come; return whether it is news."""
        self._bytes[rank, stream] = written_bytes
        return rank not in self._ended

    def begin_anew(self, rank: int) -> None:
        """Note that a new process, which has printed nothing, has taken a rank's place."""
        self._ended.discard(rank)
        for stream in _STREAMS:
            self._bytes.pop((rank, stream), None)

    def missing(self, rank: int, wire: Mapping[str, tuple[int, str]]) -> dict[str, str]:
        """Return what a rank that has ended wrote to its streams and what has not come."""
        self._ended.add(rank)
        texts = {}
        for stream, (written_bytes, encoded) in wire.items():
            if lacking := written_bytes - self._bytes.get((rank, stream), 0):
                texts[stream] = base64.b64decode(encoded)[-lacking:].decode(errors="replace")
        return texts
