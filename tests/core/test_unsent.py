"""What is kept of a process that ends before it has sent what it printed."""

from __future__ import annotations

import pytest

from ddp_magic.core.unsent import Received, Tail, tails


@pytest.mark.parametrize("piece", [b"x", b"abc", b"abcdefgh", b"0123456789ab"])
def test_the_end_is_kept(piece: bytes) -> None:
    tail = Tail(memoryview(bytearray(8 + 8)))
    for count in range(1, 12):
        tail.write(piece)
        assert tail.read() == (piece * count)[-8:]
        assert tail.written_bytes == len(piece) * count


def test_what_has_come_is_not_missing() -> None:
    memory = tails(memoryview(bytearray(2 * 24)))
    memory["stdout"].write("gone, schön".encode())
    memory["stderr"].write(b"err")
    received = Received()
    assert received.takes(3, "stdout", len("gone, "))
    assert received.takes(3, "stderr", 3)
    wire = {name: tail.to_wire() for name, tail in memory.items()}
    assert received.missing(3, wire) == {"stdout": "schön"}
    assert not received.takes(3, "stdout", 12)  # on its way meanwhile: shown already
    assert received.takes(0, "stdout", 12)


def test_of_a_rank_that_was_replaced_all_is_news_again() -> None:
    tail = Tail(memoryview(bytearray(8 + 16)))
    tail.write(b"last words")
    received = Received()
    received.takes(1, "stdout", 4)
    received.missing(1, {"stdout": tail.to_wire()})
    received.begin_anew(1)
    assert received.takes(1, "stdout", 2)
    assert received.missing(1, {"stdout": (5, tail.to_wire()[1])}) == {"stdout": "rds"}
