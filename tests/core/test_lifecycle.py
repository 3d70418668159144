import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
