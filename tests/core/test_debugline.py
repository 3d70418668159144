"""What is typed at a debugger's prompt."""

from __future__ import annotations

import pytest

from ddp_magic.core.debugline import DebugLine, Verb, parse_debug_line
from ddp_magic.errors import UsageError

_SEND = Verb.SEND


@pytest.mark.parametrize("line", ["c", "cont", "continue", " c ", "all c", "all continue"])
def test_all_are_let_go_on(line: str) -> None:
    assert parse_debug_line(line) == DebugLine(Verb.CONTINUE, None)


@pytest.mark.parametrize("line", ["q", "quit", "exit", "quit()", "exit()", "EOF", "all q", "1 q"])
def test_the_cell_is_ended(line: str) -> None:
    assert parse_debug_line(line) == DebugLine(Verb.QUIT, None)


@pytest.mark.parametrize("line", ["rank 2", "rank  2", "rank 2 "])
def test_another_rank_is_asked(line: str) -> None:
    assert parse_debug_line(line) == DebugLine(Verb.MOVE, (2,))


@pytest.mark.parametrize(
    ("line", "ranks", "text"),
    [
        ("all loss", None, "loss"),
        ("all p x, y", None, "p x, y"),
        ("all n", None, "n"),
        ("all !x = 1", None, "!x = 1"),
        ("0,2 p x", (0, 2), "p x"),
        ("0, 2 p x", (0, 2), "p x"),
        ("1-3 n", (1, 2, 3), "n"),
        ("0,2-3 x.shape", (0, 2, 3), "x.shape"),
        ("1 c", (1,), "c"),
        ("0 x", (0,), "x"),
    ],
)
def test_several_are_asked_at_once(line: str, ranks: tuple[int, ...] | None, text: str) -> None:
    assert parse_debug_line(line) == DebugLine(_SEND, ranks, text)


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "n",
        "",
        "rank",
        "rank + 1",
        "rank = 2",
        "rank x",
        "rank 2 x",
        "all",
        "all(x)",
        "all (x)",
        "all = 3",
        "all ",
        "0 if x else 1",
        "1 - 2",
        "1 and x",
        "0-1",
        "0, 2",
        "3",
        "x = 5",
        "p all, x",
        "for i in range(2): print(i)",
        "\x00",
    ],
)
def test_the_rest_is_for_the_one_that_asks(line: str) -> None:
    """What is Python is taken for Python."""
    assert parse_debug_line(line) == DebugLine(_SEND, (), line)


@pytest.mark.parametrize("line", ["0 1 x", "3-1 x", "0,, x"])
def test_ranks_that_are_none_are_refused(line: str) -> None:
    with pytest.raises(UsageError, match="ranks"):
        parse_debug_line(line)


@pytest.mark.parametrize("line", ["c", "q", "quit", "exit()"])
def test_in_a_console_these_are_python(line: str) -> None:
    assert parse_debug_line(line, in_console=True) == DebugLine(_SEND, (), line)


def test_in_a_console_ranks_can_be_named() -> None:
    assert parse_debug_line("rank 1", in_console=True) == DebugLine(Verb.MOVE, (1,))
    assert parse_debug_line("all x", in_console=True) == DebugLine(_SEND, None, "x")
    indented = "    rank 1"
    assert parse_debug_line(indented, in_console=True) == DebugLine(_SEND, (), indented)
