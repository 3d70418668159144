"""What a rank asks whoever sits at the notebook, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ddp_magic.core.where import Place

_NOWHERE = Place(0)


class Asks(Enum):
    """What asks."""

    DEBUGGER = "debugger"
    CONSOLE = "console"  # `interact`, within a debugger
    INPUT = "input"
    PASSWORD = "password"


class Answer(Enum):
    """What an answer is."""

    LINE = "line"  # what was typed
    LEAVE = "leave"  # leave `interact`, and take the line then
    EOF = "eof"  # Ctrl-D
    STOP = "stop"  # the cell is being stopped


@dataclass(frozen=True)
class Question:
    """One question of one rank's.

    Attributes
    ----------
    number
        The how manieth of the rank it is.
    prompt
        As the rank would show it.
    said
        What the debugger has printed since its last question.
    place
        Where it has stopped.
    has_stepped
        Whether it has stopped at a step's end, and not at `breakpoint()`.
    is_post_mortem
        Whether the code has failed, so that it cannot go on.
    has_signals
        Whether a signal ends it: it comes from the user's code, on the main thread.
    """

    rank: int
    number: int
    asks: Asks
    prompt: str
    said: str = ""
    place: Place = _NOWHERE
    has_stepped: bool = False
    is_post_mortem: bool = False
    has_signals: bool = True

    @classmethod
    def from_wire(cls, rank: int, wire: Mapping[str, Any]) -> Question:
        """Read what a rank has sent."""
        read = {"asks": Asks(wire["asks"]), "place": Place.from_wire(wire["place"])}
        return cls(rank=rank, **{**wire, **read})

    @property
    def is_debugger(self) -> bool:
        """Whether a debugger asks, and not the user's own code."""
        return self.asks in (Asks.DEBUGGER, Asks.CONSOLE)
