"""What is typed at a debugger's prompt: for the rank that asks, for others, or for all."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from enum import Enum

from ddp_magic.core.ranks import parse_ranks

_CONTINUE = ("c", "cont", "continue")
_QUIT = ("q", "quit", "exit", "quit()", "exit()", "EOF")
_MOVE = re.compile(r"rank\s+(\d+)")
_TO_ALL = re.compile(r"all\s+(\S.*)")
_TO_SOME = re.compile(r"(\d[\d\s,-]*)\s+([^\s\d,-].*)")


class Verb(Enum):
    """What a line asks for."""

    SEND = "give the text to ranks' debuggers"
    MOVE = "ask another rank from now on"
    CONTINUE = "let all ranks go on"
    QUIT = "end the cell"


@dataclass(frozen=True)
class DebugLine:
    """One line.

    Attributes
    ----------
    ranks
        Whom it is for; empty: the rank that asks; None: all that are stopped.
    text
        What they are given.
    """

    verb: Verb
    ranks: tuple[int, ...] | None = ()
    text: str = ""


def parse_debug_line(line: str, *, in_console: bool = False) -> DebugLine:
    """Read a line: ``rank 2``, ``all loss``, ``0,2 p x``, ``c``, ``q``, or one for the debugger.

    What is Python is taken for Python: ``all(x)`` is asked of one rank.

    Parameters
    ----------
    in_console
        Whether it was typed at the prompt of ``interact``, where ``c`` is a name.

    Raises
    ------
    UsageError
        The ranks are no ranks.
    """
    text = line.strip()
    if not in_console and text in _QUIT:
        return DebugLine(Verb.QUIT, None)
    if not in_console and text in _CONTINUE:
        return DebugLine(Verb.CONTINUE, None)
    if line[:1].isspace() or _is_python(text):
        return DebugLine(Verb.SEND, (), line)
    if found := _MOVE.fullmatch(text):
        return DebugLine(Verb.MOVE, (int(found[1]),))
    if found := _TO_ALL.fullmatch(text):
        return _addressed(None, found[1])
    if found := _TO_SOME.fullmatch(text):
        return _addressed(parse_ranks(found[1], option="ranks"), found[2])
    return DebugLine(Verb.SEND, (), line)


def _addressed(ranks: tuple[int, ...] | None, text: str) -> DebugLine:
    if text in _QUIT:
        return DebugLine(Verb.QUIT, None)
    if text in _CONTINUE and ranks is None:
        return DebugLine(Verb.CONTINUE, None)
    return DebugLine(Verb.SEND, ranks, text)


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True
