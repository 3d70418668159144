"""The session's life as a pure state machine: ``(state, event) -> state``.

::

    COLD ── start ──> STARTING ── ranks_ready ──> READY <── cell_ended ── RUNNING
                         │                         │ └─── run_cell ──────> │
                         │ start_failed            │ stop                  │ interrupt
                         v                         v                       v
                       FAILED                   STOPPING ── stopped ──> STOPPED
                                                             INTERRUPTING ── cell_ended ──> READY

A rank's death leads to DEGRADED, or to PARTIAL while a cell runs, from any state in which ranks
live. From DEGRADED, as dead ranks are replaced, RECOVERING leads back to READY. The end of what
they all need leads to LOST. What is impossible raises `StateError` with the last events' story.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from ddp_magic.errors import StateError


class State(Enum):
    """Where a session is in its life; the value is the sentence that ``%ddp status`` shows."""

    COLD = "no ranks have been started"
    STARTING = "the ranks are starting"
    READY = "the ranks are ready"
    RUNNING = "the ranks are running a cell"
    INTERRUPTING = "the ranks have been asked to stop their cell"
    DEGRADED = "a rank has died"
    PARTIAL = "a rank has died; others are running a cell"
    RECOVERING = "dead ranks are being replaced"
    STOPPING = "the ranks are being stopped"
    STOPPED = "the ranks have been stopped"
    LOST = "the ranks have been lost"
    FAILED = "the ranks could not be started"


class Event(Enum):
    """What can happen to a session."""

    START = "start"
    RANKS_READY = "ranks ready"
    START_FAILED = "start failed"
    RUN_CELL = "run cell"
    CELL_ENDED = "cell ended"
    INTERRUPT = "interrupt"
    RANK_DIED = "rank died"
    HEAL = "heal"
    HEALED = "healed"
    HEAL_FAILED = "heal failed"
    LOST = "lost"
    STOP = "stop"
    STOPPED = "stopped"


_NEXT: dict[tuple[State, Event], State] = {
    **{
        (state, Event.START): State.STARTING
        for state in (State.COLD, State.STOPPED, State.FAILED, State.LOST)
    },
    (State.STARTING, Event.RANKS_READY): State.READY,
    (State.STARTING, Event.START_FAILED): State.FAILED,
    (State.STARTING, Event.STOPPED): State.STOPPED,  # by hand
    (State.READY, Event.RUN_CELL): State.RUNNING,
    (State.RUNNING, Event.CELL_ENDED): State.READY,
    (State.RUNNING, Event.INTERRUPT): State.INTERRUPTING,
    (State.INTERRUPTING, Event.INTERRUPT): State.INTERRUPTING,
    (State.INTERRUPTING, Event.CELL_ENDED): State.READY,
    **{(state, Event.RANK_DIED): State.DEGRADED for state in (State.READY, State.DEGRADED)},
    **{
        (state, Event.RANK_DIED): State.PARTIAL
        for state in (State.RUNNING, State.INTERRUPTING, State.PARTIAL)
    },
    (State.DEGRADED, Event.RUN_CELL): State.PARTIAL,
    (State.PARTIAL, Event.CELL_ENDED): State.DEGRADED,
    (State.PARTIAL, Event.INTERRUPT): State.PARTIAL,
    (State.DEGRADED, Event.HEAL): State.RECOVERING,
    (State.RECOVERING, Event.RANK_DIED): State.RECOVERING,  # which fails
    (State.RECOVERING, Event.HEAL_FAILED): State.DEGRADED,
    (State.RECOVERING, Event.HEALED): State.READY,
    (State.RECOVERING, Event.LOST): State.LOST,
    (State.RECOVERING, Event.STOP): State.STOPPING,
    **{
        (state, Event.LOST): State.LOST
        for state in (
            State.READY,
            State.RUNNING,
            State.INTERRUPTING,
            State.DEGRADED,
            State.PARTIAL,
        )
    },
    (State.LOST, Event.CELL_ENDED): State.LOST,
    **{
        (state, Event.STOP): State.STOPPING
        for state in (
            State.READY,
            State.RUNNING,
            State.INTERRUPTING,
            State.DEGRADED,
            State.PARTIAL,
            State.LOST,
            State.STARTING,
        )
    },
    (State.STOPPING, Event.CELL_ENDED): State.STOPPING,
    (State.STOPPING, Event.RANK_DIED): State.STOPPING,
    (State.STOPPING, Event.STOPPED): State.STOPPED,
}

_FIX: dict[State, str] = {
    State.COLD: "Start them with `%ddp start`.",
    State.STOPPED: "Start them with `%ddp start`.",
    State.FAILED: "Start them again with `%ddp start`.",
    State.RUNNING: "Wait for the cell to end, or stop it.",
    State.INTERRUPTING: "Wait for the cell to end; `%ddp interrupt` kills what does not.",
    State.LOST: "Run `%ddp restart` to start new ones.",
    State.DEGRADED: "Run `%ddp heal` to have all ranks back.",
    State.PARTIAL: "Wait for the cell to end, or stop it.",
    State.RECOVERING: "Wait until they have been, or stop that.",
}

_STORY_LENGTH = 8


def advance(state: State, event: Event) -> State:
    """Return the state that follows, or raise `StateError` if ``event`` cannot happen there."""
    following = _NEXT.get((state, event))
    if following is None:
        raise StateError(f"Cannot {event.value}: {state.value}.", fix=_FIX.get(state, ""))
    return following


class Lifecycle:
    """A session's state with the story of its last events."""

    def __init__(self) -> None:
        self.state = State.COLD
        self._story: deque[str] = deque(maxlen=_STORY_LENGTH)

    def allows(self, event: Event) -> bool:
        """Whether ``event`` may happen now."""
        return (self.state, event) in _NEXT

    def on(self, event: Event) -> State:
        """Move to the state that follows ``event`` and return it.

        Raises
        ------
        StateError
            If ``event`` cannot happen now; it tells the last events.
        """
        try:
            following = advance(self.state, event)
        except StateError as error:
            story = " -> ".join(self._story) or "nothing yet"
            raise StateError(error.cause, fix=error.fix, context=f"So far: {story}.") from None
        self._story.append(f"{event.value} ({following.name})")
        self.state = following
        return following
