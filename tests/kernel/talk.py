"""Somebody who types what a test says, each line when it is asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest

from ddp_magic import Session
from ddp_magic.testing import RecordingView
from tests.told import plain, stopped

_DEADLINE_S = 30


@dataclass
class When:
    """A line that is typed when something has been shown."""

    shown: str
    line: str | BaseException


@dataclass
class Ends:
    """What is done at a prompt, upon which there is no question any more."""

    does: Callable[[], object]


Typed = str | BaseException | Callable[[], str | None] | When | Ends


@dataclass
class Talk(RecordingView):
    """A view that is typed at, and keeps what was said to each line.

    Attributes
    ----------
    lines
        What is typed, one after the other, at prompts; exceptions are raised there; functions are
        called on a thread of their own, while the question stands, and return the line, or None.
    together
        Ranks that must have been told of as stopped before the first line is typed.
    answers
        What was shown after each line, before the next prompt.
    stopped
        Where each rank was last told to have stopped, or to have failed.
    transcript
        All that was shown and typed.
    """

    lines: list[Typed] = field(default_factory=list)
    together: Collection[int] = ()
    answers: list[str] = field(default_factory=list)
    stopped: dict[int, str] = field(default_factory=dict)
    transcript: str = ""

    def text(self, stream: str, text: str) -> None:
        """Keep text."""
        super().text(stream, text)
        self._say(plain(text))

    def notice(self, text: str) -> None:
        """Keep a notice."""
        super().notice(text)
        self.stopped |= stopped(text)
        self._say(f"{text}\n")

    def no_input(self) -> str:
        """Say that somebody types."""
        return ""

    def ask(self, prompt: str, goes_on: Callable[[], bool], is_password: bool) -> str | None:
        """Return what is typed next."""
        self.prompts.append(prompt)
        assert self.lines, f"asked once more:\n{self.transcript}{prompt}"
        if not self._await(goes_on, lambda: self.stopped.keys() >= set(self.together)):
            return None
        typed = self.lines[0]
        if isinstance(typed, Ends):
            self.lines.pop(0)
            typed.does()
            self._await(goes_on, lambda: False)
            return None
        if isinstance(typed, When):
            wanted = typed.shown
            if not self._await(goes_on, lambda: wanted in self.transcript):
                return None
            typed = typed.line
        self.lines.pop(0)
        line = self._call(typed, goes_on) if callable(typed) else typed
        if line is None:
            return None
        self.transcript += f"{prompt}{line!s}\n"
        self.answers.append("")
        if isinstance(line, BaseException):
            raise line
        return line

    def _say(self, text: str) -> None:
        self.transcript += text
        if self.answers:
            self.answers[-1] += text

    def _await(self, goes_on: Callable[[], bool], done: Callable[[], bool]) -> bool:
        """Wait; return whether the answer is still wanted."""
        until_s = time.monotonic() + _DEADLINE_S
        while goes_on():
            if done():
                return True
            assert time.monotonic() < until_s, f"nothing came:\n{self.transcript}"
        return False

    def _call(self, function: Callable[[], str | None], goes_on: Callable[[], bool]) -> str | None:
        said: list[str | None] = []
        thread = threading.Thread(target=lambda: said.append(function()))
        thread.start()
        self._await(goes_on, lambda: not thread.is_alive())
        thread.join(_DEADLINE_S)
        return said[0]


def talk(
    session: Session,
    code: str,
    *lines: Typed,
    together: Collection[int] = (0, 1),
    raises: type[BaseException] | None = None,
    **options: Any,
) -> Talk:
    """Run a cell, typing; fail if it asks for more, or less, than is typed."""
    view = Talk(lines=list(lines), together=together)
    with pytest.raises(raises) if raises else nullcontext():
        session.run(code, view=view, header="%%ddp\n", **options)
    assert not view.lines, f"not asked for {view.lines}:\n{view.transcript}"
    return view


def look_into(
    session: Session, *lines: Typed, rank: int | None = None, together: Collection[int] = ()
) -> Talk:
    """Look into the last failure, typing."""
    view = Talk(lines=list(lines), together=together)
    session.debug(rank, view=view)
    assert not view.lines, f"not asked for {view.lines}:\n{view.transcript}"
    return view
