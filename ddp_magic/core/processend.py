"""How a process ended, as a value: code, signal, last words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_TAIL_LINES = 15
_LIKELY = {
    "SIGKILL": "the system does that when memory runs out",
    "SIGSEGV": "compiled code crashed",
    "SIGABRT": "compiled code gave up",
    "SIGBUS": "compiled code crashed, or shared memory (/dev/shm) is full",
    "SIGILL": "compiled code uses instructions that this processor lacks",
    "SIGFPE": "compiled code divided by zero",
    "SIGXCPU": "the limit on processor time was reached",
    "SIGXFSZ": "the limit on the size of a file was reached",
}


@dataclass(frozen=True)
class ProcessEnd:
    """The end of a process.

    Attributes
    ----------
    exit_code
        None if a signal ended it, or if it is not known.
    signal_name
        ``"SIGKILL"``, or ``""`` if no signal ended it.
    core_dumped
        Whether the system says that it has written a core file.
    tail
        The last that it wrote to its standard output and error.
    unsent
        The last that Python printed to each stream, sent or not (see `core.unsent`).
    """

    exit_code: int | None = None
    signal_name: str = ""
    core_dumped: bool = False
    tail: str = ""
    unsent: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """What follows "rank 3" or "the controller": ``was killed by SIGKILL (...)``."""
        if self.signal_name:
            why = [_LIKELY[self.signal_name]] if self.signal_name in _LIKELY else []
            why += ["core dumped"] if self.core_dumped else []
            verb = "was killed by" if self.signal_name in ("SIGKILL", "SIGTERM") else "died of"
            return f"{verb} {self.signal_name}" + (f" ({', '.join(why)})" if why else "")
        if self.exit_code is None:
            return "has gone"
        return f"exited with code {self.exit_code}"

    @property
    def last_line(self) -> str:
        """The last line of what it wrote, where a traceback names the exception."""
        return self.tail.rpartition("\n")[2].strip()

    @property
    def last_lines(self) -> str:
        """The last few lines of what it wrote."""
        return "\n".join(self.tail.splitlines()[-_TAIL_LINES:])
