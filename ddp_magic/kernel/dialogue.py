"""The conversation with ranks that ask: which is asked for, who gets what is typed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from ddp_magic.core.debugline import DebugLine, Verb, parse_debug_line
from ddp_magic.core.question import Answer, Asks, Question
from ddp_magic.core.ranks import in_number, named, told_missing, told_of_each
from ddp_magic.core.view import View
from ddp_magic.core.where import Place
from ddp_magic.errors import UsageError
from ddp_magic.kernel.world import World

_SETTLE_S = 0.3  # how long the first that asks waits for the others, which mostly ask as well


class Dialogue:
    """Over one cell, on the thread that runs it.

    Parameters
    ----------
    first
        The rank that is to be asked for first, if several ask.
    """

    def __init__(
        self, world: World, engines: Mapping[int, int], view: View, first: int | None = None
    ) -> None:
        self._world = world
        self._engines = engines
        self._view = view
        self._asking: dict[int, Question] = {}
        self._current = first
        self._awaited: set[int] = set()  # have been answered, and will ask again
        self._let_go: set[int] = set()  # will ask again, and are not awaited
        self._continued: set[int] = set()  # of those: that shall go on then, after `c`
        self._answers: dict[int, str] = {}  # what those said that have asked again
        self._unshown: dict[int, str] = {}  # what those said that have stopped, until it is shown
        self._news: dict[int, Question] = {}  # have stopped, which has not been told yet
        self._asked_s = math.inf  # when the first of those asked that were not awaited
        # What was typed for `input()`, None for Ctrl-D, by its prompt and how manieth it is.
        self._typed: dict[tuple[int, str], str | None] = {}
        self._typed_for = dict.fromkeys(engines, 0)  # how many answers each rank has had
        self._helps: set[str] = set()  # lines of help that were shown
        self._is_over = False

    @property
    def is_open(self) -> bool:
        """Whether a rank waits for an answer."""
        return bool(self._asking)

    def stopped(self) -> dict[int, Place]:
        """Return where the ranks are that a debugger has stopped."""
        return {rank: one.place for rank, one in self._asking.items() if one.is_debugger}

    @property
    def awaited(self) -> tuple[int, ...]:
        """Ranks that were answered and have not asked again, while others ask."""
        return tuple(self._awaited - self._asking.keys()) if self._asking else ()

    def hear(self, question: Question) -> None:
        """Take note that a rank asks."""
        rank = question.rank
        if self._is_over:
            return self._tell(question, Answer.STOP)
        self._let_go.discard(rank)
        if rank in self._continued:
            self._continued.discard(rank)
            if question.has_stepped:
                return self._tell(question, Answer.LINE, "c")
        self._asking[rank] = question
        if rank in self._awaited and question.is_debugger:
            self._awaited.discard(rank)
            self._unshown.pop(rank, None)
            self._answers[rank] = question.said
            return
        self._asked_s = min(self._asked_s, time.monotonic())
        if question.is_debugger:
            self._news[rank] = question
            self._unshown[rank] = question.said
        else:
            self._answer_alike(question)

    def hear_resumed(self, rank: int) -> None:
        """Take note that a rank has left the debugger."""
        for known in (self._awaited, self._let_go, self._continued):
            known.discard(rank)

    def drop(self, rank: int) -> None:
        """Take note that a rank asks no more: it has died."""
        self.hear_resumed(rank)
        for known in (self._asking, self._news, self._answers, self._unshown):
            known.pop(rank, None)

    def let_go(self, waiting: Mapping[int, str]) -> None:
        """Wait no longer for ranks that wait themselves, in a collective, for those that ask."""
        self._awaited -= waiting.keys()
        self._let_go |= waiting.keys()
        waits = {rank: f"waits in {where}, for others" for rank, where in waiting.items()}
        self._view.notice(f"ddp: {'; '.join(told_of_each(waits))}")

    def is_due(self, busy: Collection[int]) -> bool:
        """Whether somebody is to be asked now; all that was awaited has come."""
        self._awaited.intersection_update(busy)
        if not self._asking or self._awaited - self._asking.keys():  # its code may ask, too
            return False
        settles = 0 < time.monotonic() - self._asked_s < _SETTLE_S
        return not settles or self._asking.keys() >= set(busy)

    def converse(self, turn: Callable[[], None], busy: Callable[[], Collection[int]]) -> None:
        """Ask for one line, and give it to whom it is for.

        Parameters
        ----------
        turn
            Is called meanwhile, many times a second.

        Raises
        ------
        KeyboardInterrupt
            Stop was pressed, or the debugger was left to end the cell.
        """
        self._asked_s = math.inf
        self._show_answers()
        self._tell_news(busy())
        if asked_back := self._awaited & self._asking.keys():
            self._current = min(asked_back)
        if self._current is None or self._current not in self._asking:
            self._current = self._move(min(self._asking))
        question = self._asking[self._current]

        def goes_on() -> bool:
            turn()
            if self._asking.get(question.rank) is not question:
                return False
            self._tell_news(busy())
            return True

        try:
            line = self._view.ask(self._prompt(question), goes_on, question.asks is Asks.PASSWORD)
        except EOFError:
            return self._take_end(question)
        if line is not None:
            self._take(question, line)

    def close(self) -> None:
        """Have no rank ask any more: the cell is being stopped, or has ended."""
        self._is_over = True
        for question in self._asking.values():
            if not question.has_signals:  # a signal reaches the others
                self._tell(question, Answer.STOP)
        self._asking.clear()
        self._awaited.clear()
        self._news.clear()

    # ---- what is shown

    def _prompt(self, question: Question) -> str:
        is_lead = question.rank == min(self._engines)
        plain = not question.is_debugger and is_lead
        return question.prompt if plain else f"[rank {question.rank}] {question.prompt}"

    def _tell_news(self, busy: Collection[int]) -> None:
        """Say which ranks have stopped, where, and which have not."""
        if not self._news:
            return
        news, self._news = self._news, {}
        afterwards = any(question.is_post_mortem for question in news.values())
        verb = "has failed" if afterwards else "has stopped"
        told = told_of_each({rank: f"{verb} at {q.place.told}" for rank, q in sorted(news.items())})
        if running := [rank for rank in busy if rank not in self._asking]:
            told.append(f"{named(running)} {in_number('runs', len(running))} on")
        self._view.notice(f"ddp: {'; '.join(told)}")
        if self._current not in self._asking:
            self._current = min(news)
        if (helped := self._help(afterwards)) not in self._helps:
            self._helps.add(helped)
            self._view.notice(f"ddp: {helped}")
        if self._current in news:
            self._view.text("stdout", self._unshown.pop(self._current))

    def _help(self, afterwards: bool) -> str:
        lines = ["`q` leaves"] if afterwards else ["`c` continues all", "`q` ends the cell"]
        stopped = [rank for rank, one in self._asking.items() if one.is_debugger]
        if others := [rank for rank in sorted(stopped) if rank != self._current]:
            lines[:0] = [f"`rank {others[0]}` goes to rank {others[0]}", "`all EXPR` asks all"]
        return ", ".join(lines)

    def _show_answers(self) -> None:
        """Show what ranks said to what was typed: plainly of one, grouped of several."""
        answers, self._answers = self._answers, {}
        if self._current is not None and answers.keys() == {self._current}:
            self._view.text("stdout", answers[self._current])
            return
        alike: dict[str, list[int]] = {}
        for rank, said in sorted(answers.items()):
            alike.setdefault(said.strip("\n"), []).append(rank)
        alike.pop("", None)
        for said, ranks in alike.items():
            between = "\n" if "\n" in said else " "
            self._view.text("stdout", f"[{named(ranks)}]{between}{said}\n")

    # ---- what is typed

    def _take(self, question: Question, line: str) -> None:
        if not question.is_debugger:
            return self._take_input(question, line)
        try:
            typed = parse_debug_line(line, in_console=question.asks is Asks.CONSOLE)
            ranks = self._addressed(typed, question.rank)
        except UsageError as error:
            self._view.notice(f"ddp: {error}")
            return
        if typed.verb is Verb.MOVE:
            self._current = self._move(ranks[0])
        elif typed.verb is Verb.CONTINUE:
            self._go_on("c")
        elif typed.verb is Verb.QUIT:
            self._quit(question)
        else:
            self._awaited.update(ranks)
            for rank in ranks:
                self._tell(self._asking.pop(rank), Answer.LINE, typed.text)

    def _addressed(self, typed: DebugLine, current: int) -> tuple[int, ...]:
        """Return whom a line is for; raise `UsageError` if one of them is not stopped."""
        stopped = [rank for rank, question in self._asking.items() if question.is_debugger]
        ranks = tuple(sorted(stopped)) if typed.ranks is None else typed.ranks or (current,)
        if unknown := [rank for rank in ranks if rank not in self._world.engines]:
            raise UsageError(f"{told_missing(unknown)}; {named(stopped)} can be asked")
        if running := [rank for rank in ranks if rank not in stopped]:
            what = in_number("is not stopped", len(running))
            raise UsageError(f"{named(running)} {what}; {named(stopped)} can be asked")
        return ranks

    def _move(self, rank: int) -> int:
        """Show where a rank is that is to be asked."""
        question = self._asking[rank]
        if question.is_debugger:
            self._view.notice(f"ddp: rank {rank} is at {question.place.told}")
            self._view.text("stdout", self._unshown.pop(rank, ""))
        return rank

    def _go_on(self, command: str) -> None:
        """Have all debuggers leave; by `q`, those that look into a failure."""
        if command == "c":
            self._continued |= self._let_go
        for rank, question in list(self._asking.items()):
            if question.is_debugger and (command == "c" or question.is_post_mortem):
                in_console = question.asks is Asks.CONSOLE
                del self._asking[rank]
                self._tell(question, Answer.LEAVE if in_console else Answer.LINE, command)

    def _quit(self, question: Question) -> None:
        if not question.is_post_mortem:
            raise KeyboardInterrupt  # what Stop does is what it takes
        self._go_on("q")

    def _take_input(self, question: Question, line: str | None) -> None:
        """Give what was typed to all ranks that ask the same: they run the same code."""
        self._typed[self._typed_for[question.rank], question.prompt] = line
        for other in list(self._asking.values()):
            if not other.is_debugger:
                self._answer_alike(other)

    def _answer_alike(self, question: Question) -> None:
        """Answer a rank that asks what another one has asked before."""
        asked = self._typed_for[question.rank], question.prompt
        if asked not in self._typed:
            return
        line = self._typed[asked]
        self._typed_for[question.rank] += 1
        del self._asking[question.rank]
        self._tell(question, Answer.EOF if line is None else Answer.LINE, line or "")

    def _take_end(self, question: Question) -> None:
        """Take Ctrl-D."""
        if question.asks is Asks.DEBUGGER:
            return self._quit(question)
        if not question.is_debugger:
            return self._take_input(question, None)
        del self._asking[question.rank]
        self._awaited.add(question.rank)
        self._tell(question, Answer.EOF)

    def _tell(self, question: Question, answer: Answer, text: str = "") -> None:
        with suppress(KeyError):  # its engine has gone; that it has died is told next
            engine_id = self._engines[question.rank]
            self._world.client.answer(engine_id, question.number, answer.value, text)
