"""Fakes that tests share."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from ddp_magic.core.runstate import RunState
from ddp_magic.core.view import MimeBundle, Points


@dataclass
class RecordingView:
    """A view that keeps what it is shown.

    Attributes
    ----------
    typed
        What is typed when somebody is asked, one after the other, or raised; None: no input. When
        all has been, nothing is typed any more.
    """

    texts: list[tuple[str, str]] = field(default_factory=list)
    displays: list[MimeBundle] = field(default_factory=list)
    updates: list[MimeBundle] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    progresses: list[str] = field(default_factory=list)
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    cleared: int = 0
    finished: int = 0
    stop: Callable[[], object] | None = None
    typed: list[str | BaseException | Callable[[], str]] | None = None
    states: list[RunState] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False)

    @property
    def stdout(self) -> str:
        """All that was shown on ``stdout``."""
        return "".join(text for stream, text in self.texts if stream == "stdout")

    @property
    def stderr(self) -> str:
        """All that was shown on ``stderr``."""
        return "".join(text for stream, text in self.texts if stream == "stderr")

    def begin(self) -> None:
        """Do nothing."""

    def offer_controls(self, stop: Callable[[], object], where: Callable[[], str]) -> None:
        """Keep what stops the cell."""
        self.stop = stop

    def show_state(self, state: RunState) -> None:
        """Keep it."""
        self.states.append(state)

    def text(self, stream: str, text: str) -> None:
        """Keep text."""
        with self._changed:
            self.texts.append((stream, text))
            self._changed.notify_all()

    def await_stdout(self, text: str, timeout_s: float = 10) -> bool:
        """Wait until ``text`` has been shown on ``stdout``; return whether it was."""
        with self._changed:
            return self._changed.wait_for(lambda: text in self.stdout, timeout_s)

    def display(self, data: MimeBundle, metadata: MimeBundle, transient: MimeBundle) -> None:
        """Keep a rich output."""
        self.displays.append(data)

    def update_display(self, data: MimeBundle, metadata: MimeBundle, transient: MimeBundle) -> None:
        """Keep a replacement."""
        self.updates.append(data)

    def clear_output(self, wait: bool) -> None:
        """Count it."""
        self.cleared += 1

    def notice(self, text: str) -> None:
        """Keep a notice."""
        self.notices.append(text)

    def progress(self, text: str) -> None:
        """Keep it."""
        self.progresses.append(text)

    def points(self, points: Points) -> None:
        """Keep points."""
        for name, added in points.items():
            self.curves[name] += [(step, value) for step, value in added]

    def no_input(self) -> str:
        """Say whether something is typed."""
        return "nobody types" if self.typed is None else ""

    def ask(self, prompt: str, goes_on: Callable[[], bool], is_password: bool) -> str | None:
        """Return what is typed next."""
        self.prompts.append(prompt)
        typed = self.typed.pop(0) if self.typed else None
        if isinstance(typed, BaseException):
            raise typed
        if not goes_on():
            return None
        if typed is None:
            while goes_on():
                pass
            return None
        return typed if isinstance(typed, str) else typed()

    def tick(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Count it."""
        self.finished += 1
