"""Whatever goes wrong, wherever the other ranks are: the prompt, the cause, and all that was kept.

The table is in `tests.failure.faults`.
"""

from __future__ import annotations

import re

import pytest

from ddp_magic.core.ranks import format_ranks
from tests.failure.faults import CELL, FAULTS, INTERRUPTED, SITUATIONS, Case, End, Kind, cases
from tests.failure.world import TOLERANCE, Ranks, State, Told

_TIMEOUT_S = 2
_ERROR = {End.ITSELF: "CellError", End.STOP: "CellInterrupted", End.TIMEOUT: "CellTimeout"}

Trained = tuple[list[float], list[float]]


@pytest.mark.parametrize(
    ("world", "case"),
    [pytest.param(case.world_size, case, id=str(case)) for case in cases()],
    indirect=["world"],
    scope="module",  # so that a kernel is shared
)
def test_a_failure_costs_no_more_than_its_cell(
    ranks: Ranks, case: Case, one_process: Trained
) -> None:
    culprit = {2: 1, 4: 0}[case.world_size]
    others = [rank for rank in range(case.world_size) if rank != culprit]
    fault = FAULTS[case.fault]
    options = f"--timeout {_TIMEOUT_S}" if case.end is End.TIMEOUT else ""
    told = ranks.fail(
        CELL.format(
            options=options,
            culprit=culprit,
            fault=fault.code,
            situation=SITUATIONS[case.situation].code,
        ),
        press_stop=case.end is End.STOP,
    )

    assert told.name == _ERROR[case.end]
    check_told_of_culprit(told, case, culprit)
    for rank in others:
        assert re.search(expected_of_others(case), told.of(rank), re.MULTILINE), told.text

    if fault.kind is Kind.HANGS and case.end is End.TIMEOUT:
        again = ranks.fail("%%ddp\npass")
        assert f"Still busy with the cell that was stopped: rank {culprit}" in again.text
        ranks.run_well("%ddp interrupt")
    if fault.kind in (Kind.DIES, Kind.HANGS):
        check_unharmed(ranks.before, ranks.look(format_ranks(others)), others)
        ranks.restored()
        unharmed = others
    else:
        unharmed = list(range(case.world_size))
    found, trained = ranks.train()
    check_unharmed(ranks.before, {rank: found[rank] for rank in unharmed}, unharmed)
    check_trained(trained, one_process)
    assert len(trained) == case.world_size


def check_told_of_culprit(told: Told, case: Case, culprit: int) -> None:
    """The rank with the fault is named, with what became of it and where."""
    fault = FAULTS[case.fault]
    parts = fault.kind is Kind.PARTS and case.fault != "absent"
    if parts and case.situation in ("all_reduce", "barrier"):
        place = SITUATIONS[case.situation].place.removeprefix("in ")
        calls = told.text.partition("calls do not match: ")[2]
        assert re.search(rf"rank {culprit} {fault.told}", calls), told.text
        assert re.search(rf"ranks? [\d-]+ {place}", calls), told.text
        return
    if fault.kind is Kind.HANGS and case.end is End.TIMEOUT:
        assert re.search("is at line 4: .* still", told.of(culprit)), told.text
        return
    how = fault.told
    if parts and case.end is End.ITSELF:
        how = f"waited in {how}"
    elif parts or fault.kind is Kind.STAYS:
        how = INTERRUPTED.format(place=f"in {how}" if parts else how)
    assert re.search(how, told.of(culprit), re.MULTILINE), told.text
    if (case.end is End.ITSELF and not parts) or fault.kind is Kind.HANGS:
        shown = "" if case.fault == "absent" else fault.shown
        assert re.search(shown, told.all), told.all
    if fault.kind in (Kind.HANGS, Kind.DIES):
        assert "`%ddp heal` brings it back" in told.all


def expected_of_others(case: Case) -> str:
    """Return what is told of a rank without the fault."""
    kind, place = FAULTS[case.fault].kind, SITUATIONS[case.situation].place
    waited, interrupted = f"waited {place}.* in vain", INTERRUPTED.format(place=place)
    if case.end is not End.ITSELF or case.situation == "computing":
        return interrupted
    if kind is Kind.DIES:  # its connections end at once, and what was made of them with them
        gone = "|w(as|ere) stopped then" if case.situation == "backward" else ""
        return f"{waited}|{interrupted}{gone}"
    if kind is Kind.PARTS and case.fault != "absent" and case.situation != "backward":
        return "failed with CollectiveError: .*calls do not match"
    # As some are seen to wait in vain all are freed, also one that has not said yet where it is.
    return f"{waited}|{interrupted}" if kind is Kind.PARTS else waited


def check_unharmed(before: dict[int, State], found: dict[int, State], ranks: list[int]) -> None:
    """Ranks have what they had, and what the failed cell did; nothing of it runs on."""
    assert sorted(found) == sorted(ranks)
    for rank in ranks:
        was, now = before[rank], found[rank]
        assert now["kept"] == ["a list", rank, "changed"]
        assert now["same_objects"]
        assert now["weights"] == was["weights"]
        assert now["children"] <= was["children"]
        # The last traceback is kept for %debug, and with it what its frames held.
        assert now["python_threads"] <= was["python_threads"] + 1


def check_trained(trained: dict[int, State], one_process: Trained) -> None:
    """All ranks hold what training in one process gives."""
    first, *rest = (state["weights"] for state in trained.values())
    assert all(weights == first for weights in rest)
    assert first == pytest.approx(one_process[1], abs=TOLERANCE)


REPEATED = (("raise", "backward"), ("another shape", "all_reduce"), ("absent", "backward"))
_TIMES = 4


@pytest.mark.parametrize(("fault", "situation"), REPEATED)
def test_nothing_piles_up_in_a_rank(ranks: Ranks, fault: str, situation: str) -> None:
    """Process groups are made anew again and again: threads, files and children are not."""
    cell = CELL.format(
        options="", culprit=1, fault=FAULTS[fault].code, situation=SITUATIONS[situation].code
    )
    seen = []
    for _ in range(_TIMES):
        ranks.fail(cell)
        seen.append(ranks.train()[1])
    for rank in range(ranks.world_size):
        first, last = seen[0][rank], seen[-1][rank]
        for what in ("children", "python_threads", "threads", "files"):
            assert last[what] <= first[what], [one[rank][what] for one in seen]
