import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ddp_magic.core.lifecycle import Event, Lifecycle, State, advance
from ddp_magic.errors import StateError


def _after(*events: Event) -> Lifecycle:
    life = Lifecycle()
    for event in events:
        life.on(event)
    return life


def test_an_ordinary_life() -> None:
    life = _after(Event.START, Event.RANKS_READY, Event.RUN_CELL, Event.CELL_ENDED, Event.STOP)
    assert life.on(Event.STOPPED) is State.STOPPED
    assert life.on(Event.START) is State.STARTING


def test_a_death_while_a_cell_runs_is_not_forgotten_at_its_end() -> None:
    life = _after(Event.START, Event.RANKS_READY, Event.RUN_CELL, Event.RANK_DIED)
    assert life.on(Event.CELL_ENDED) is State.DEGRADED
    assert life.allows(Event.STOP)


def test_dead_ranks_are_replaced_or_not() -> None:
    life = _after(Event.START, Event.RANKS_READY, Event.RANK_DIED, Event.HEAL)
    assert life.state is State.RECOVERING
    assert life.on(Event.RANK_DIED) is State.RECOVERING
    assert life.on(Event.HEAL_FAILED) is State.DEGRADED
    life.on(Event.HEAL)
    assert life.on(Event.HEALED) is State.READY
    with pytest.raises(StateError, match="Cannot heal: the ranks are ready"):
        life.on(Event.HEAL)


def test_survivors_run_cells() -> None:
    life = _after(Event.START, Event.RANKS_READY, Event.RANK_DIED, Event.RUN_CELL)
    assert life.on(Event.CELL_ENDED) is State.DEGRADED


def test_what_is_impossible_tells_the_story_and_the_fix() -> None:
    life = _after(Event.START, Event.RANKS_READY, Event.RUN_CELL)
    with pytest.raises(StateError) as caught:
        life.on(Event.RUN_CELL)
    assert str(caught.value).splitlines() == [
        "Cannot run cell: the ranks are running a cell.",
        "Wait for the cell to end, or stop it.",
        "So far: start (STARTING) -> ranks ready (READY) -> run cell (RUNNING).",
    ]
    assert life.state is State.RUNNING


@settings(derandomize=True)
@given(st.lists(st.sampled_from(Event)))
def test_every_state_in_which_ranks_may_live_can_be_stopped(events: list[Event]) -> None:
    life = Lifecycle()
    for event in events:
        if life.allows(event):
            life.on(event)
    without_ranks = {State.COLD, State.STOPPED, State.FAILED, State.STOPPING}
    assert life.allows(Event.STOP) is (life.state not in without_ranks)


def test_advance_is_pure() -> None:
    assert advance(State.COLD, Event.START) is advance(State.COLD, Event.START) is State.STARTING


class Life(RuleBasedStateMachine):
    """A session told as what there is: ranks that live, a cell that runs, and what is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.life = Lifecycle()
        self.under_way = ""  # a start, a stop, a heal
        self.size = self.dead = 0
        self.runs = self.asked_to_stop = self.lost = self.failed = self.stopped = False

    @precondition(
        lambda self: not self.under_way and (not self.size or self.lost) and not self.runs
    )
    @rule()
    def start(self) -> None:
        self.life.on(Event.START)
        self.under_way, self.size, self.dead = "start", 0, 0
        self.lost = self.failed = self.stopped = False

    @precondition(lambda self: self.under_way == "start")
    @rule(outcome=st.sampled_from((Event.RANKS_READY, Event.START_FAILED, Event.STOPPED)))
    def end_start(self, outcome: Event) -> None:
        self.life.on(outcome)
        self.under_way = ""
        self.size = 4 if outcome is Event.RANKS_READY else 0
        self.failed, self.stopped = outcome is Event.START_FAILED, outcome is Event.STOPPED

    @precondition(lambda self: self.is_idle and self.dead < self.size)
    @rule()
    def run_cell(self) -> None:
        self.life.on(Event.RUN_CELL)
        self.runs, self.asked_to_stop = True, False

    @precondition(lambda self: self.runs)
    @rule()
    def end_cell(self) -> None:
        self.life.on(Event.CELL_ENDED)
        self.runs = False

    @precondition(lambda self: self.runs and not self.lost and not self.under_way)
    @rule()
    def interrupt(self) -> None:
        self.life.on(Event.INTERRUPT)
        self.asked_to_stop = True

    @precondition(lambda self: self.dead < self.size and not self.lost)
    @rule()
    def die(self) -> None:
        self.life.on(Event.RANK_DIED)
        self.dead += 1

    @precondition(lambda self: self.is_idle and self.dead)
    @rule()
    def heal(self) -> None:
        self.life.on(Event.HEAL)
        self.under_way = "heal"

    @precondition(lambda self: self.under_way == "heal")
    @rule(succeeds=st.booleans())
    def end_heal(self, succeeds: bool) -> None:
        self.life.on(Event.HEALED if succeeds else Event.HEAL_FAILED)
        self.under_way = ""
        self.dead = 0 if succeeds else self.dead

    @precondition(lambda self: self.size and not self.lost and self.under_way != "stop")
    @rule()
    def lose(self) -> None:
        self.life.on(Event.LOST)
        self.lost, self.under_way = True, ""

    @precondition(lambda self: self.size and self.under_way in ("", "heal"))
    @rule()
    def stop(self) -> None:
        self.life.on(Event.STOP)
        self.under_way, self.lost = "stop", False

    @precondition(lambda self: self.under_way == "stop" and not self.runs)
    @rule()
    def end_stop(self) -> None:
        self.life.on(Event.STOPPED)
        self.under_way, self.size, self.dead, self.stopped = "", 0, 0, True

    @property
    def is_idle(self) -> bool:
        return bool(self.size) and not (self.under_way or self.runs or self.lost)

    @invariant()
    def the_state_says_what_there_is(self) -> None:
        assert self.life.state is self._expected()

    @invariant()
    def what_cannot_be_is_refused(self) -> None:
        assert self.life.allows(Event.RUN_CELL) is (self.is_idle)
        assert self.life.allows(Event.HEAL) is (self.is_idle and self.dead > 0)
        assert not (self.life.allows(Event.RANK_DIED) and not self.size)

    def _expected(self) -> State:
        under_way = {"start": State.STARTING, "stop": State.STOPPING, "heal": State.RECOVERING}
        if self.under_way:
            return under_way[self.under_way]
        if self.lost:
            return State.LOST
        if not self.size:
            if self.failed:
                return State.FAILED
            return State.STOPPED if self.stopped else State.COLD
        if self.dead:
            return State.PARTIAL if self.runs else State.DEGRADED
        if self.runs:
            return State.INTERRUPTING if self.asked_to_stop else State.RUNNING
        return State.READY


TestLife = Life.TestCase
TestLife.settings = settings(derandomize=True, deadline=None)
