"""The matrix of failures: what goes wrong on one rank, where the others are, how the cell ends.

All of it is data; `tests.failure.test_matrix` runs it. Texts are regular expressions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

CELL = """\
%%ddp {options}
model(x).sum().backward(); kept.append('changed')
if rank == {culprit} and others_are_there():
    {fault}
else:
    {situation}
"""
# A rank that stays where it is leaves a mark there, for the other ranks and for the test.
THERE = "there.touch()"


class Kind(Enum):
    """What becomes of the rank with the fault."""

    FAILS = "its code raises"
    DIES = "its process ends"
    PARTS = "it does not make the collectives that the others make"
    STAYS = "its code does not end, and can be interrupted"
    HANGS = "its code does not end, and cannot be interrupted"


class End(Enum):
    """What ends the cell."""

    ITSELF = "by itself"
    STOP = "Stop"
    TIMEOUT = "--timeout"


@dataclass(frozen=True)
class Fault:
    """What goes wrong, on one rank.

    Attributes
    ----------
    code
        In line 4 of the cell.
    told
        What the cell's error says of the rank; of one that parts or stays, where it is.
    shown
        What is shown above that, such as the traceback's arrow at line 4.
    """

    code: str
    kind: Kind
    told: str
    shown: str = "-> 4 "


@dataclass(frozen=True)
class Situation:
    """What the other ranks do.

    Attributes
    ----------
    code
        In line 6 of the cell.
    place
        How that is named.
    """

    code: str
    place: str


@dataclass(frozen=True)
class Case:
    """One test: a fault, a situation and an end, by name."""

    world_size: int
    fault: str
    situation: str
    end: End

    def __str__(self) -> str:
        return f"{self.world_size} ranks: {self.fault}, others: {self.situation}, {self.end.value}"


NO_PLACE = ""  # a process that has gone can only say so where it had the time for it
# A rank that is slow to say where it is, as all are on a busy machine, is interrupted all the same.
INTERRUPTED = "w(as|ere) interrupted( {place}|$)"
_C_CALL = "[library.pthread_mutex_lock(mutex) for _ in 'twice']"

FAULTS = {
    "raise": Fault(
        "raise ValueError('bad sample 17')", Kind.FAILS, "failed with ValueError: bad sample 17"
    ),
    "sys.exit": Fault("sys.exit(3)", Kind.FAILS, "failed with SystemExit: 3", "SystemExit: 3"),
    "no memory for an object": Fault(
        "bytearray(more_than_the_memory_limit())", Kind.FAILS, "failed with MemoryError"
    ),
    "no memory for a tensor": Fault(
        "torch.ones(more_than_the_memory_limit())",
        Kind.FAILS,
        "failed with RuntimeError: .*can't allocate memory",
    ),
    "a loader's worker dies": Fault(
        "list(DataLoader(Deadly(), num_workers=1))",
        Kind.FAILS,
        r"failed with RuntimeError: DataLoader worker \(pid.* (exited unexpectedly|is killed)",
    ),
    "os._exit": Fault("os._exit(7)", Kind.DIES, "exited with code 7", NO_PLACE),
    "SIGKILL": Fault(
        "os.kill(os.getpid(), signal.SIGKILL)",
        Kind.DIES,
        "was killed by SIGKILL .*memory runs out",
        NO_PLACE,
    ),
    "SIGSEGV": Fault(
        "ctypes.string_at(0)",
        Kind.DIES,
        r"died of SIGSEGV \(compiled code crashed",
        "the cell, line 4 in ",
    ),
    "another collective": Fault(
        f"{THERE}; dist.broadcast(torch.ones(1), 0)",
        Kind.PARTS,
        r"broadcast of \[1\] float32 \(line 4\)",
    ),
    "another shape": Fault(
        f"{THERE}; dist.all_reduce(torch.ones(8))",
        Kind.PARTS,
        r"all_reduce of \[8\] float32 \(line 4\)",
    ),
    "absent": Fault("pass", Kind.PARTS, "finished"),
    "endless loop": Fault(
        f"while True: spins += 1; spins > 1 or {THERE}",
        Kind.STAYS,
        "at line 4: ",
    ),
    "endless output": Fault(
        f"while True: spins += 1; print('x' * 99); spins > 1 or {THERE}",
        Kind.STAYS,
        "at line 4: ",
    ),
    "C call": Fault(
        f"library = ctypes.CDLL(None); {THERE}; {_C_CALL}",
        Kind.HANGS,
        "was killed, as you asked",
        r"is at line 4: .*, and does not end: Stop kills rank",
    ),
    "C call that holds the GIL": Fault(
        f"library = ctypes.PyDLL(None); {THERE}; {_C_CALL}",
        Kind.HANGS,
        "was killed, as you asked",
        r"is at line 4: .* \(compiled code that lets no other run\), .* Stop kills rank",
    ),
}
SITUATIONS = {
    "computing": Situation(f"while True: spins += 1; spins > 1 or {THERE}", "at line 6: "),
    "all_reduce": Situation(
        f"{THERE}; dist.all_reduce(torch.ones(4))", r"in all_reduce of \[4\] float32 \(line 6\)"
    ),
    "backward": Situation(
        f"{THERE}; model(x).sum().backward()",
        r"in backward\(\), all_reduce #\d+ of \[49\] float \(line 6\)",
    ),
    "barrier": Situation(f"{THERE}; dist.barrier()", r"in barrier \(line 6\)"),
}
# Of more ranks, what can differ from two: who leads, and how ranks are grouped in what is told.
_OF_FOUR = (
    ("raise", "computing", End.ITSELF),
    ("raise", "all_reduce", End.ITSELF),
    ("raise", "backward", End.ITSELF),
    ("no memory for a tensor", "barrier", End.ITSELF),
    ("SIGKILL", "all_reduce", End.ITSELF),
    ("SIGSEGV", "backward", End.ITSELF),
    ("another shape", "all_reduce", End.ITSELF),
    ("another collective", "backward", End.ITSELF),
    ("absent", "barrier", End.ITSELF),
    ("endless loop", "all_reduce", End.STOP),
    ("endless loop", "backward", End.TIMEOUT),
    ("C call", "backward", End.STOP),
)
_BY_TIMEOUT = (
    ("another shape", "computing"),
    ("endless loop", "computing"),
    ("endless loop", "backward"),
    ("endless output", "all_reduce"),
    ("C call", "barrier"),
)


def cases() -> Iterator[Case]:
    """Yield every fault in every situation on two ranks, and a choice of them on four."""
    for fault in FAULTS:
        for situation in SITUATIONS:
            if (fault, situation) == ("absent", "computing"):
                continue  # nobody waits for it
            yield Case(2, fault, situation, _end(FAULTS[fault].kind, situation))
    for fault, situation in _BY_TIMEOUT:
        yield Case(2, fault, situation, End.TIMEOUT)
    for fault, situation, end in _OF_FOUR:
        yield Case(4, fault, situation, end)


def _end(kind: Kind, situation: str) -> End:
    """Return what ends a cell: a rank may wait for ever for others that compute."""
    waits = kind is Kind.PARTS and situation == "computing"
    return End.STOP if waits or kind in (Kind.STAYS, Kind.HANGS) else End.ITSELF
