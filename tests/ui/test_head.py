"""What stands above a cell's curves."""

from __future__ import annotations

from ddp_magic.core.runstate import Doing, Pulse, RankState, RunState
from ddp_magic.ui.head import head_of


def test_words_stand_beside_the_colour() -> None:
    ranks = {
        0: RankState(Doing.RUNS),
        1: RankState(Doing.WAITS, "in barrier (line 3), 4 s"),
        2: RankState(Doing.FAILED, "ValueError: a long story"),
    }
    chips = head_of(RunState(ranks))["chips"]
    assert [chip["text"] for chip in chips] == [
        "0 ▸ runs",
        "1 … waits in barrier (line 3), 4 s",
        "2 × failed",  # noqa: RUF001
    ]
    assert chips[2]["title"] == "rank 2 failed: ValueError: a long story"


def test_many_ranks_are_told_of_in_groups() -> None:
    ranks = {rank: RankState(Doing.RUNS) for rank in range(64)}
    ranks[9] = RankState(Doing.DIED, "was killed by SIGKILL")
    head = head_of(RunState(ranks))
    assert head["chips"][8]["text"] == "8 ▸"
    assert head["told"] == "ranks 0-8, 10-63 run; rank 9 died: was killed by SIGKILL"


def test_a_chip_says_what_its_rank_takes() -> None:
    ranks = {0: RankState(Doing.RUNS), 1: RankState(Doing.RUNS)}
    pulse = Pulse(1.0, 1, memory_bytes=300 * 2**20, device_bytes=(2**30, 80 * 2**30))
    titles = [chip["title"] for chip in head_of(RunState(ranks, latest={1: pulse}))["chips"]]
    assert titles == ["rank 0 runs", "rank 1 runs; 300 MiB; GPU 1.0 GiB of 80 GiB"]


def test_facts_are_those_that_are_known() -> None:
    assert head_of(RunState({}))["facts"] == []
    state = RunState(
        {},
        step=1200,
        steps_per_s=98.4,
        samples_per_s=6300.0,
        waiting_share=0.123,
        memory_bytes=300 * 2**20,
        device_bytes=(2 * 2**30, 80 * 2**30),
        device_use=0.934,
    )
    assert head_of(state)["facts"] == [
        "step 1,200",
        "98.4 steps/s",
        "6,300 samples/s",
        "12% waiting for gradients",
        "300 MiB a rank",
        "GPU 2.0 GiB of 80 GiB, 93% busy",
    ]
