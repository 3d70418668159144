"""What a cell is doing, from what its ranks tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddp_magic.core.runstate import Doing, Pulse, Pulses, RankState, StepTime


def _pulses(*beats: tuple[int, Pulse, float]) -> Pulses:
    pulses = Pulses((0, 1))
    for rank, pulse, now_s in beats:
        pulses.hear(rank, pulse, now_s)
    return pulses


def test_nothing_is_known_at_first() -> None:
    pulses = Pulses((0, 1))
    assert not pulses
    state = pulses.state({}, 10.0)
    assert state.ranks == dict.fromkeys((0, 1), RankState(Doing.RUNS))
    assert (state.step, state.steps_per_s, state.progress, state.waiting_share) == (0, None) + (
        None,
    ) * 2


def test_rates_are_of_the_last_seconds() -> None:
    beats = [(0, Pulse(float(s), 10 * s + 100 * (s > 15), 64), s) for s in range(1, 31)]
    state = _pulses(*beats).state({}, 31)
    assert state.steps_per_s == pytest.approx(10)
    assert state.samples_per_s == pytest.approx(640)
    assert state.step == 400


def test_a_rank_waits_when_it_is_met_twice_in_one_collective() -> None:
    waits = Pulse(1.0, 5, waits_in="barrier (line 3)")
    pulses = _pulses((1, waits, 100.0))
    assert pulses.state({}, 100.1).ranks[1].doing is Doing.RUNS
    pulses.hear(1, Pulse(2.0, 5, waits_in="barrier (line 3)"), 101.0)
    assert pulses.state({}, 103.0).ranks[1] == RankState(Doing.WAITS, "in barrier (line 3), 3 s")
    pulses.hear(1, Pulse(3.0, 6, waits_in="barrier (line 3)"), 104.0)
    assert pulses.state({}, 104.0).ranks[1].doing is Doing.RUNS


def test_a_rank_that_tells_nothing_is_silent_and_what_is_known_counts_more() -> None:
    pulses = _pulses((0, Pulse(1.0, 1), 50.0), (1, Pulse(1.0, 1), 50.0))
    failed = RankState(Doing.FAILED, "ValueError: bad")
    ranks = pulses.state({1: failed}, 60.0).ranks
    assert ranks[0] == RankState(Doing.SILENT, "for 10 s, in compiled code")
    assert ranks[1] is failed


def test_waiting_is_a_mean_over_ranks_and_unknown_on_a_gpu() -> None:
    beats = [
        (0, Pulse(1.0, 1, waited_s=0.0), 1.0),
        (0, Pulse(3.0, 9, waited_s=1.0), 3.0),
        (1, Pulse(1.0, 1, waited_s=0.0), 1.0),
        (1, Pulse(3.0, 9, waited_s=0.5), 3.0),
    ]
    assert _pulses(*beats).state({}, 3.0).waiting_share == pytest.approx(0.375)
    on_gpu = [(0, Pulse(1.0, 1), 1.0), (0, Pulse(3.0, 9), 3.0)]
    assert _pulses(*on_gpu).state({}, 3.0).waiting_share is None


def test_a_steps_time_is_without_the_first_step_and_what_follows_the_last() -> None:
    beats = [(0.5, 0, 0.0), (1.0, 1, 0.5), (1.5, 2, 0.75), (3.5, 22, 1.25), (60.0, 22, 1.25)]
    pulses = _pulses(*((0, Pulse(s, step, waited_s=waited), s) for s, step, waited in beats))
    assert pulses.times() == {0: StepTime(0.1, 0.025)}


def test_where_steps_were_seen_once_there_is_no_time() -> None:
    assert _pulses((0, Pulse(0.5, 0), 0.5), (0, Pulse(1.5, 3), 1.5)).times() == {}


def test_memory_is_that_of_the_fullest_and_progress_that_of_the_lead() -> None:
    lead = Pulse(1.0, 1, position=3, length=10, memory_bytes=5, device_bytes=(1, 8))
    lead = replace(lead, device_use=0.5)
    other = Pulse(1.0, 1, position=4, length=10, memory_bytes=7, device_bytes=(6, 8))
    other = replace(other, device_use=1.0)
    state = _pulses((0, lead, 1.0), (1, other, 1.0)).state({}, 1.0)
    assert (state.memory_bytes, state.device_bytes, state.progress) == (7, (6, 8), (3, 10))
    assert state.device_use == 0.75
    assert state.latest == {0: lead, 1: other}


def test_wire() -> None:
    pulse = Pulse(1.0, 2, 64, 3, 4, 0.5, 6, (7, 8), 0.5, "barrier")
    wire = vars(pulse) | {"device_bytes": [7, 8]}
    assert Pulse.from_wire(wire) == pulse
    assert Pulse.from_wire({"at_s": 1.0, "step": 2}) == Pulse(1.0, 2)
