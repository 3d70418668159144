"""What a running cell is doing, rank by rank: what the panel above its output shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

_SILENT_S = 5.0  # how long after its last pulse a rank is said to be silent
_RECENT_S = 10.0  # over which rates are taken


class Doing(Enum):
    """What a rank does; the value is the word that is shown."""

    RUNS = "runs"
    WAITS = "waits"
    STOPPED = "stopped"
    ENDED = "ended"
    FAILED = "failed"
    DIED = "died"
    SILENT = "silent"


@dataclass(frozen=True)
class Pulse:
    """What a rank tells of itself, once a second.

    Attributes
    ----------
    at_s
        Seconds since the rank began the cell.
    step
        Training steps so far in this cell.
    batch
        Samples of a step, on all ranks together; None where it is not known.
    position, length
        How many batches of the present pass over its loader it has taken, and how many there are;
        None where there is none, or its length is not known.
    waited_s
        How long it has waited for gradients after its own were computed; None on a GPU, where the
        processor does not wait for them.
    memory_bytes
        Of the process's own memory.
    device_bytes
        Of GPU memory: used, by all, and there; None on the CPU.
    device_use
        In which part of the last moment the GPU computed; None where it is not known.
    waits_in
        The collective that it waits in, or ``""``.
    """

    at_s: float
    step: int
    batch: int | None = None
    position: int | None = None
    length: int | None = None
    waited_s: float | None = None
    memory_bytes: int = 0
    device_bytes: tuple[int, int] | None = None
    device_use: float | None = None
    waits_in: str = ""

    def is_where(self, other: Pulse) -> bool:
        """Whether the rank has not gone on since."""
        return (self.waits_in, self.step, self.position) == (
            other.waits_in,
            other.step,
            other.position,
        )

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Pulse:
        """Read what a rank has sent."""
        device = wire.get("device_bytes")
        return cls(**{**wire, "device_bytes": tuple(device) if device else None})


@dataclass(frozen=True)
class RankState:
    """One rank: what it does, and in words more about it."""

    doing: Doing
    about: str = ""

    @property
    def words(self) -> str:
        """``waits in barrier (line 3), 4 s``, ``failed: ValueError``."""
        ended = self.doing in (Doing.FAILED, Doing.DIED)
        return (": " if ended else " ").join(filter(None, (self.doing.value, self.about)))


@dataclass(frozen=True)
class RunState:
    """A running cell.

    Attributes
    ----------
    ranks
        What each rank does.
    step
        The lead's training steps.
    elapsed_s
        How old the cell is on the lead.
    batch
        Samples of a step, on all ranks together.
    steps_per_s, samples_per_s
        Lately; None where nothing is trained, or the size of a batch is not known.
    waiting_share
        Which part of the time ranks wait for gradients, on average; None where it is not known.
    memory_bytes
        The most that a rank has of its own.
    device_bytes
        Used and there, of the GPU that is fullest.
    device_use
        In which part of the time the GPUs compute, on average; None where it is not known.
    progress
        Batches done and to do, in the present pass over the data.
    latest
        What each rank has last told of itself.
    """

    ranks: Mapping[int, RankState]
    step: int = 0
    elapsed_s: float = 0.0
    batch: int | None = None
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    waiting_share: float | None = None
    memory_bytes: int = 0
    device_bytes: tuple[int, int] | None = None
    device_use: float | None = None
    progress: tuple[int, int] | None = None
    latest: Mapping[int, Pulse] = field(default_factory=dict)


@dataclass(frozen=True)
class StepTime:
    """How long one rank takes for a step.

    Attributes
    ----------
    step_s
        In all.
    waited_s
        Of that, for other ranks' gradients; None where it is not known.
    """

    step_s: float
    waited_s: float | None = None

    @property
    def own_s(self) -> float:
        """What the rank needs itself."""
        return self.step_s - (self.waited_s or 0.0)


class Pulses:
    """The pulses of all ranks of a cell, and what follows from them.

    Parameters
    ----------
    ranks
        Those that run the cell.
    """

    def __init__(self, ranks: Collection[int]) -> None:
        self._ranks = sorted(ranks)
        self._recent: dict[int, list[Pulse]] = {rank: [] for rank in self._ranks}
        self._first: dict[int, Pulse] = {}  # when the first step, which is slow, was over
        self._last: dict[int, Pulse] = {}  # to tell of another step: what follows is no training
        self._heard_s: dict[int, float] = {}
        self._waits_since_s: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._heard_s)

    def hear(self, rank: int, pulse: Pulse, now_s: float) -> None:
        """Take in a pulse."""
        recent = self._recent[rank]
        recent.append(pulse)
        if pulse.step > 1:  # a step counts as its backward begins
            self._first.setdefault(rank, pulse)
            if rank not in self._last or pulse.step > self._last[rank].step:
                self._last[rank] = pulse
        while pulse.at_s - recent[0].at_s > _RECENT_S and len(recent) > 2:
            del recent[0]
        before_s, self._heard_s[rank] = self._heard_s.get(rank, now_s), now_s
        before = recent[-2] if len(recent) > 1 else None
        if before is None or not pulse.waits_in or not pulse.is_where(before):
            self._waits_since_s.pop(rank, None)  # who waits is met in the middle of it, mostly
        else:
            self._waits_since_s.setdefault(rank, before_s)

    def times(self) -> dict[int, StepTime]:
        """Return how long each rank took for a step of the whole cell, and waited in it.

        Without its first step, for which much is prepared, and what it does after the last.
        """
        found = {}
        for rank, last in self._last.items():
            first = self._first[rank]
            steps = last.step - first.step
            if steps > 0:
                waited_s = None
                if last.waited_s is not None and first.waited_s is not None:
                    waited_s = (last.waited_s - first.waited_s) / steps
                found[rank] = StepTime((last.at_s - first.at_s) / steps, waited_s)
        return found

    def state(self, known: Mapping[int, RankState], now_s: float) -> RunState:
        """Return what the cell is doing.

        Parameters
        ----------
        known
            Of ranks that have ended the cell, however, or are stopped: what is known of them.
        """
        lead = self._recent[self._ranks[0]]
        latest = {rank: recent[-1] for rank, recent in self._recent.items() if recent}
        steps_per_s = _rate(lead)
        batch = lead[-1].batch if lead else None
        devices = [one.device_bytes for one in latest.values() if one.device_bytes]
        uses = [one.device_use for one in latest.values() if one.device_use is not None]
        return RunState(
            ranks={rank: known.get(rank) or self._seen(rank, now_s) for rank in self._ranks},
            step=lead[-1].step if lead else 0,
            elapsed_s=lead[-1].at_s if lead else 0.0,
            batch=batch,
            steps_per_s=steps_per_s,
            samples_per_s=steps_per_s * batch if steps_per_s and batch else None,
            waiting_share=self._waiting_share(),
            memory_bytes=max((one.memory_bytes for one in latest.values()), default=0),
            device_bytes=max(devices, key=lambda pair: pair[0] / pair[1], default=None),
            device_use=sum(uses) / len(uses) if uses else None,
            progress=_progress(lead[-1]) if lead else None,
            latest=latest,
        )

    def _seen(self, rank: int, now_s: float) -> RankState:
        recent, heard_s = self._recent[rank], self._heard_s.get(rank)
        if heard_s is None:
            return RankState(Doing.RUNS)
        if now_s - heard_s > _SILENT_S:
            return RankState(Doing.SILENT, f"for {now_s - heard_s:.0f} s, in compiled code")
        if rank in self._waits_since_s:
            waited_s = now_s - self._waits_since_s[rank]
            return RankState(Doing.WAITS, f"in {recent[-1].waits_in}, {waited_s:.0f} s")
        return RankState(Doing.RUNS)

    def _waiting_share(self) -> float | None:
        shares = []
        for recent in self._recent.values():
            if len(recent) > 1 and recent[0].waited_s is not None:
                waited_s = (recent[-1].waited_s or 0.0) - recent[0].waited_s
                shares.append(waited_s / (recent[-1].at_s - recent[0].at_s))
        trained = any(one[-1].step > one[0].step for one in self._recent.values() if one)
        return sum(shares) / len(shares) if shares and trained else None


def _rate(recent: list[Pulse]) -> float | None:
    if len(recent) < 2 or recent[-1].step == recent[0].step:
        return None
    return (recent[-1].step - recent[0].step) / (recent[-1].at_s - recent[0].at_s)


def _progress(pulse: Pulse) -> tuple[int, int] | None:
    if pulse.position is None or not pulse.length:
        return None
    return min(pulse.position, pulse.length), pulse.length
