"""One cell on its way through the ranks: sent, followed, shown, ended."""

from __future__ import annotations

import contextvars
import math
import queue
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ipyparallel import error as ipp_error

from ddp_magic.core.budget import OutputBudget
from ddp_magic.core.cellrecord import CellRecord
from ddp_magic.core.checked import confirmation
from ddp_magic.core.crash import CrashTrimmer
from ddp_magic.core.ending import Ending, Step
from ddp_magic.core.failed import Failed
from ddp_magic.core.failures import FailureStory, RankFailure
from ddp_magic.core.output import Chunk, Grouper
from ddp_magic.core.question import Question
from ddp_magic.core.ranks import named, told_of_each
from ddp_magic.core.runstate import Doing, Pulse, Pulses, RankState, StepTime
from ddp_magic.core.unsent import WRITTEN_KEY
from ddp_magic.core.view import Points, View
from ddp_magic.core.witness import Closing, managed_drift
from ddp_magic.kernel.client import Message, relays_widgets
from ddp_magic.kernel.dialogue import Dialogue
from ddp_magic.kernel.vigil import Vigil
from ddp_magic.kernel.world import World

_TICK_S = 0.05
_SHOW_S = 0.5
_IDLE_GRACE_S = 5.0  # how long a reply waits for the output that was sent before it
_GRACE_S = 1.0  # how long other ranks have, when one has failed, to end or to fail themselves
METADATA_KEY = "ddp_magic"
_POINTS_KIND = "points"
_NO_WIDGETS = (
    "ddp: widgets need a notebook, and are not shown here; a progress bar of text is "
    "`from tqdm import tqdm`"
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class CellRun:
    """Follows one cell on a set of ranks and shows it in a view.

    `start` and `pump` belong to the thread that runs the cell; messages arrive on the client's
    thread and wait in a queue. What comes after the end goes to the view at once, in the context
    (the notebook cell) in which the run was made.
    """

    def __init__(
        self,
        world: World,
        engines: Mapping[int, int],
        view: View,
        output: str,
        source: str,
        looks_into: Failed | None = None,
    ) -> None:
        self._world = world
        self._engines = dict(engines)
        self._record = CellRecord(tuple(sorted(engines)))
        self._view = view
        self._lead = min(engines)
        self._output = output
        self.source = source  # magic line included
        self.name = "a cell"
        self._grouper = self._new_grouper()
        self._every_display = output == "all"
        self._shows_differing = output == "grouped"
        self._crashes = {rank: CrashTrimmer() for rank in engines}
        self._budgets = {rank: OutputBudget(f"rank {rank}") for rank in engines}
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._context = contextvars.copy_context()
        self._late = threading.Lock()
        self._ended = False
        self.stopped = False  # whether somebody asked for its end
        self._ending: Ending | None = None  # of a cell that is over, and has ranks that are not
        self._interrupting = False
        self.is_told_stuck = False  # whether it was said that some do not end
        self._is_told_held = False  # whether it was said that the cell is over, while a rank asks
        self.killed: set[int] = set()
        self._watched_s = 0.0
        self._begun: set[int] = set()
        self._replied: dict[int, float] = {}
        self._idle: set[int] = set()
        self._results: dict[int, str] = {}
        self._lead_result: dict[str, Any] | None = None
        self._endings: dict[int, str] = {}
        self._held_notices: dict[str, str] = {}
        self._notices: set[str] = set()
        self.looks_into = looks_into  # what failed earlier, if the cell does nothing else
        self._pulses = Pulses(self._engines)
        self._shown_s = 0.0  # when it was last shown what the ranks do
        self._dialogue = Dialogue(
            world, self._engines, view, looks_into.first if looks_into else None
        )
        self._vigil = Vigil(world, self._engines, self._record, source, view, self._inbox.put)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that run the cell."""
        return self._record.ranks

    @property
    def step_times(self) -> dict[int, StepTime]:
        """How long each rank took for a step, of those that have made some."""
        return self._pulses.times()

    @property
    def busy(self) -> tuple[int, ...]:
        """The ranks that have not ended the cell."""
        return tuple(rank for rank in sorted(self._engines) if not self._has_ended(rank))

    def start(self, code: str, metadata: dict[str, Any]) -> None:
        """Send the cell to its ranks."""
        for rank, engine_id in self._engines.items():
            sink = partial(self._receive, rank)
            future = self._world.client.send_cell(engine_id, code, metadata, sink)
            future.add_done_callback(partial(self._receive_reply, rank))

    def lose(self, rank: int, what: str) -> None:
        """Note, on any thread, that a rank's process has ended; ``what`` follows "rank 3".

        The cell cannot succeed any more, so the other ranks are interrupted.
        """
        if rank in self._engines:
            self._inbox.put(partial(self._note_death, rank, what))

    def lose_all(self, what: str) -> None:
        """Note that every rank has ended."""
        for rank in self._engines:
            self.lose(rank, what)

    def print_unsent(self, rank: int, unsent: Mapping[str, tuple[int, str]]) -> None:
        """Show, called on any thread, what a rank that has ended printed and could not send."""

        def show() -> None:
            for stream, text in self._world.received.missing(rank, unsent).items():
                self._show_printed(rank, stream, text)

        if rank in self._engines and not self._ended:
            self._inbox.put(show)

    def print_for(self, rank: int, stream: str, text: str) -> None:
        """Show, called on any thread, what compiled code or a process of a rank's has printed."""
        if rank not in self._engines:
            return
        if not self._ended:
            self._inbox.put(partial(self._show_printed, rank, stream, text))
        else:
            self._show_late(partial(self._show_printed, rank, stream, text))

    def interrupt(self) -> None:
        """Have every rank that is busy interrupted; may be called on any thread.

        A rank that has not begun is interrupted as soon as it has: before that, it ignores it.
        """
        self._inbox.put(self._press_stop)

    def kill(self) -> None:
        """Kill the ranks that are busy: they did not end when they were interrupted."""
        for rank in self.busy:
            self.killed.add(rank)
            self._world.signal(rank, signal.SIGKILL)

    def pump(self, until_s: float | None = None) -> bool:
        """Show what comes until every rank has ended the cell; return whether that is so.

        Parameters
        ----------
        until_s
            When to return even if ranks are busy, on `time.monotonic`'s clock. The time that
            somebody takes to answer a rank does not count.
        """
        while self.busy:
            if until_s is not None and time.monotonic() >= until_s:
                return False
            self._turn(_TICK_S)
            if self._dialogue.is_due(self.busy):
                asked_s = time.monotonic()
                self._show(self._grouper.finish())
                try:
                    self._dialogue.converse(partial(self._turn, 0), lambda: self.busy)
                finally:
                    self._vigil.begin_anew()
                if until_s is not None:
                    until_s += time.monotonic() - asked_s
        return True

    def _turn(self, timeout_s: float) -> None:
        """Take one thing that has come, waiting for it so long, and do what is due."""
        now_s = time.monotonic()
        try:
            self._inbox.get(timeout=timeout_s)() if timeout_s else self._inbox.get_nowait()()
        except queue.Empty:
            self._show(self._grouper.tick(now_s))
            self._view.tick()
        if now_s - self._watched_s >= _TICK_S:
            self._watched_s = now_s
            self._watch(now_s)
        if self._pulses and now_s - self._shown_s >= _SHOW_S:
            self._shown_s = now_s
            self._view.show_state(self._pulses.state(self._known(), now_s))

    def _known(self) -> dict[int, RankState]:
        """Return what the ranks do that have ended the cell or are stopped."""
        known = {rank: RankState(Doing.ENDED) for rank in self._replied}
        for rank, place in self._dialogue.stopped().items():
            known[rank] = RankState(Doing.STOPPED, f"at {place.line_text}")
        for rank, failure in self._record.failures.items():
            known[rank] = RankState(Doing.FAILED, failure.headline)
        for rank, what in self._record.died.items():
            known[rank] = RankState(Doing.DIED, what)
        return known

    def _watch(self, now_s: float) -> None:
        """Do what is due by time, also while output floods in."""
        if self._dialogue.is_open:
            return self._watch_held(now_s)
        busy = self.busy
        ended = {rank: one.counts for rank, one in self._record.closings.items()}
        gone = {*self._record.died, *(self._world.engines.keys() - self._engines.keys())}
        if self._ending is None and self._record.is_over(self._replied):
            self._ending = Ending(now_s + (0 if self._record.died else _GRACE_S))
        if self._ending is not None:
            for step in self._ending.due(now_s, self._vigil.has_answers(busy)):
                self._take(step, busy)
        if not self._interrupting:
            self._vigil.watch(now_s, busy, ended, gone)

    def _watch_held(self, now_s: float) -> None:
        """Let ranks be that wait for one which asks, or whose cell is over: it is looked into."""
        if self._record.is_over(self._replied) and not self._is_told_held:
            self._is_told_held = True
            self._view.notice(f"ddp: {self.story().summary()}; the cell ends after `c` or `q`")
        self._ending = None  # they get their time to end when nobody asks any more
        if waiting := self._vigil.waiting(now_s, self._dialogue.awaited):
            self._dialogue.let_go(waiting)

    def _take(self, step: Step, busy: tuple[int, ...]) -> None:
        """Take a step towards the end of a cell that is over."""
        if step is Step.LOOK:
            self._vigil.look(busy)
        elif step is Step.INTERRUPT:
            self._interrupting = True
            unseen = dict.fromkeys(busy, "was interrupted")
            self._record.places.update(unseen | self._vigil.places(busy))
            self._signal([rank for rank in busy if rank in self._begun])
            if self._record.died:  # what others wait for will not come
                self._vigil.free()
        elif step is Step.FREE:
            self._vigil.free_who_waits(busy)
        elif step is Step.DUMP:
            self._vigil.request_stacks(busy)
        else:
            self._tell_stuck(busy)

    def _tell_stuck(self, busy: tuple[int, ...]) -> None:
        places = self._vigil.stuck(busy)
        if not places:  # they are ending
            assert self._ending is not None
            return self._ending.tell_later(time.monotonic())
        self.is_told_stuck = True
        self._record.places.update(places)
        why = "" if self.stopped else f"{self.story().summary()}; "
        where = "; ".join(told_of_each(places))
        all_ranks = len(places) == self._world.size
        stays = "all variables are lost then" if all_ranks else "the variables of the others stay"
        ends = "does not end" if len(places) == 1 else "do not end"
        self._view.notice(f"ddp: {why}{where}, and {ends}: Stop kills {named(places)}, {stays}")

    def finish(self) -> None:
        """Show what was held back and close the view; later output is shown as it comes."""
        while not self._inbox.empty():
            self._inbox.get()()
        self._vigil.hear()
        self._show(self._grouper.finish())
        self._show_endings()
        self._show_results()
        if drift := managed_drift(self._record.attested):
            self._view.notice(f"ddp: {drift}. It is yours, and was left alone.")
        if (checked := self._record.checked) and not self.failed:
            self._view.notice(f"ddp: {confirmation(checked)}")
        for key, text in self._held_notices.items():
            if key not in self._notices:
                self._view.notice(text)
        self._ended = True
        self._dialogue.close()
        self._view.finish()
        # It is kept for output that comes late, and what it has compared would be kept with it.
        self._grouper = self._new_grouper()
        self._results, self._lead_result, self._endings = {}, None, {}

    def _new_grouper(self) -> Grouper:
        return Grouper(self._record.ranks, self._output)

    def story(self) -> FailureStory:
        """Return what has happened to each rank so far."""
        return self._record.story(self.busy)

    def errors(self) -> dict[int, str]:
        """Return what each rank of the cell failed with, empty where it did not."""
        return self._record.errors()

    @property
    def failed(self) -> bool:
        """Whether the cell did not come to its end on every rank."""
        return bool(self.busy or self._record.error((), ()))

    def failure(self, number: int) -> Failed | None:
        """Return which ranks have failed, of this cell of that number; None if none has."""
        ranks, first = tuple(sorted(self._record.failures)), self.story().first
        return Failed(number, self.name, ranks, first.rank) if first is not None else None

    @property
    def group_is_broken(self) -> bool:
        """Whether the ranks' process group must be made anew before they can use it again."""
        return self._record.group_is_broken

    @property
    def way_back(self) -> str:
        """What brings the ranks back that have died in the cell; ``""`` if none has."""
        return self._record.way_back(self._world.engines)

    def raise_failures(self) -> None:
        """Raise `CellError` or `ParityError` if the cell failed anywhere."""
        if (error := self._record.error(self.busy, self._world.engines)) is not None:
            raise error

    def _has_ended(self, rank: int) -> bool:
        if rank in self._record.died:
            return True
        replied_s = self._replied.get(rank)
        if replied_s is None:
            return False
        return rank in self._idle or time.monotonic() - replied_s > _IDLE_GRACE_S

    # On the client's thread.

    def _receive(self, rank: int, message: Message) -> None:
        kind = message["header"]["msg_type"]
        if rank in self._replied:
            self._replied[rank] = time.monotonic()
        if kind == "status":
            if message["content"]["execution_state"] == "idle":
                self._idle.add(rank)
                self._wake_at_end()
        elif kind == "execute_input":
            self._begun.add(rank)
            if self._interrupting:
                self._inbox.put(partial(self._signal, [rank]))
        elif not self._ended:
            self._inbox.put(partial(self._handle, rank, message))
        elif kind == "stream":
            self._show_late(partial(self._handle, rank, message))

    def _receive_reply(self, rank: int, future: Any) -> None:
        if isinstance(result := future.result(), ipp_error.KernelError):
            self._inbox.put(partial(self._note_failed_reply, rank, result))
        self._replied[rank] = time.monotonic()
        self._wake_at_end()

    def _wake_at_end(self) -> None:
        """Wake the thread that runs the cell once, and not for each rank's every sign of life."""
        if not self.busy:
            self._inbox.put(_nothing)

    def _show_late(self, feed: Callable[[], None]) -> None:
        """Show what comes after the end: on the client's thread or the fork server's."""

        def show() -> None:
            feed()
            self._show(self._grouper.finish())

        with self._late:  # a context is entered by one thread at a time
            self._context.run(show)

    # On the thread that runs the cell.

    def _note_death(self, rank: int, what: str) -> None:
        self._record.died.setdefault(rank, what)
        self._dialogue.drop(rank)
        self._begin_ending()

    def _press_stop(self) -> None:
        self._dialogue.close()
        if self._interrupting:  # once more: some code takes an interrupt and goes on
            self._signal([rank for rank in self.busy if rank in self._begun])
        self._begin_ending()

    def _begin_ending(self) -> None:
        now_s = time.monotonic()
        if self._ending is None:
            self._ending = Ending(now_s)
        self._ending.hasten(now_s)

    def _signal(self, ranks: list[int]) -> None:
        for rank in ranks:
            self._world.signal(rank, signal.SIGINT)

    def _note_failed_reply(self, rank: int, result: ipp_error.KernelError) -> None:
        if isinstance(result, ipp_error.TaskAborted):
            self._record.died.setdefault(
                rank, "did not run the cell: an earlier one had just failed"
            )
        elif result.ename == "EngineError":
            self._record.died.setdefault(rank, "died")
        else:
            # IPython prints some failures (an unknown magic, an exception group) and sends no
            # error message; the reply says that the cell failed all the same. (Its traceback
            # is then that of an earlier failure.)
            said = RankFailure(rank, result.ename, result.evalue, (), at_s=math.inf)
            self._record.failures.setdefault(rank, said)

    def _handle(self, rank: int, message: Message) -> None:
        kind, content = message["header"]["msg_type"], message["content"]
        handler = getattr(self, f"_on_{kind}", None)
        if handler is not None:
            if content.get("kind") != "pulse":  # which a rank that waits sends, too
                self._vigil.hear()
            handler(rank, content, message)

    def _on_stream(self, rank: int, content: dict[str, Any], message: Message) -> None:
        name, text = content["name"], content["text"]
        written_bytes = message["metadata"].get(WRITTEN_KEY, 0)
        if self._world.received.takes(rank, name, written_bytes) and text:
            self._show(self._grouper.feed(rank, name, text, time.monotonic()))

    def _show_printed(self, rank: int, stream: str, text: str) -> None:
        now_s = time.monotonic()
        passed = self._budgets[rank].feed(stream, self._crashes[rank].feed(text), now_s)
        self._vigil.hear()
        if passed:
            self._show(self._grouper.feed(rank, stream, passed, now_s))

    def _on_display_data(self, rank: int, content: dict[str, Any], _: Message) -> None:
        if self._shows_displays_of(rank):
            self._view.display(content["data"], content["metadata"], content.get("transient", {}))

    def _on_update_display_data(self, rank: int, content: dict[str, Any], _: Message) -> None:
        if self._shows_displays_of(rank):
            self._view.update_display(
                content["data"], content["metadata"], content.get("transient", {})
            )

    def _on_execute_result(self, rank: int, content: dict[str, Any], message: Message) -> None:
        if self._every_display:
            self._on_display_data(rank, content, message)
        elif rank == self._lead:
            self._lead_result = content
        if set(content["data"]) == {"text/plain"}:
            self._results[rank] = content["data"]["text/plain"]

    def _on_comm_open(self, rank: int, content: dict[str, Any], _: Message) -> None:
        is_widget = content.get("target_name") == "jupyter.widget"
        if not (is_widget and self._shows_displays_of(rank)) or relays_widgets():
            return
        if not self._world.lacks_widgets:
            self._world.lacks_widgets = True
            self._view.notice(_NO_WIDGETS)

    def _on_clear_output(self, rank: int, content: dict[str, Any], _: Message) -> None:
        if rank == self._lead:
            self._view.clear_output(content.get("wait", False))

    def _on_error(self, rank: int, content: dict[str, Any], _: Message) -> None:
        at_s = self._record.failures[rank].at_s if rank in self._record.failures else math.inf
        self._record.failures[rank] = RankFailure(
            rank=rank,
            name=content["ename"],
            message=content["evalue"],
            traceback=tuple(content["traceback"]),
            at_s=at_s,  # the rank says when as the cell ends
        )

    def _on_execute_reply(self, rank: int, _: dict[str, Any], message: Message) -> None:
        if closing := message["metadata"].get(METADATA_KEY):
            self._record.closings[rank] = Closing.from_wire(closing)

    def _on_ddp_magic(self, rank: int, content: dict[str, Any], _: Message) -> None:
        if content["kind"] == _POINTS_KIND:
            self._view.points(_as_points(content[_POINTS_KIND]))
        elif content["kind"] == "notice":
            self._notice(rank, content["key"], content["text"])
        elif content["kind"] == "pulse":
            self._pulses.hear(rank, Pulse.from_wire(content["pulse"]), time.monotonic())
        elif content["kind"] == "asks":
            self._dialogue.hear(Question.from_wire(rank, content["question"]))
        elif content["kind"] == "resumes":
            self._dialogue.hear_resumed(rank)
        elif content["kind"] == "ended":
            self._note_end(rank, content["at_s"], content["ending"])

    def _note_end(self, rank: int, at_s: float, ending: str) -> None:
        if rank in self._record.failures:
            self._record.failures[rank] = replace(self._record.failures[rank], at_s=at_s)
        if ending:
            self._endings[rank] = ending

    def _notice(self, rank: int, key: str, text: str) -> None:
        """Show the lead's notices; those of other ranks at the end, where the lead had none."""
        if rank == self._lead:
            self._notices.add(key)
            self._view.notice(text)
        else:
            self._held_notices.setdefault(key, f"[rank {rank}] {text}")

    def _shows_displays_of(self, rank: int) -> bool:
        return rank == self._lead or self._every_display

    def _show(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self._view.text(chunk.stream, chunk.text)

    def _show_endings(self) -> None:
        """Show the last lines of floods: the lead's stands for the other ranks'."""
        for rank, budget in self._budgets.items():
            if ending := budget.finish():
                self._endings.setdefault(rank, ending)
        for rank, ending in sorted(self._endings.items()):
            if rank == self._lead:
                self._view.text("stdout", ending)
            elif self._every_display or self._lead not in self._endings:
                self._view.text("stdout", f"[rank {rank}] {ending}")

    def _show_results(self) -> None:
        """Show the lead's result below all that was printed; of others, plain ones that differ."""
        if self._lead_result is not None:
            self._view.display(self._lead_result["data"], self._lead_result["metadata"], {})
        if not self._shows_differing or self._lead not in self._results:
            return
        shown = _without_addresses(self._results[self._lead])
        for rank, text in sorted(self._results.items()):
            if _without_addresses(text) != shown:
                self._view.text("stdout", f"[rank {rank}] {text}\n")


def _as_points(wire: dict[str, list[tuple[int, float | str]]]) -> Points:
    """Read points from a message; JSON has no NaN, so what is not finite came as its name."""
    return {name: [(step, float(value)) for step, value in some] for name, some in wire.items()}


def _without_addresses(text: str) -> str:
    return _ADDRESS.sub("", text)


def _nothing() -> None:
    """What the thread that runs the cell is woken with."""
