"""What follows from what is known of a cell."""

from __future__ import annotations

import pytest

from ddp_magic.core.cellrecord import CellRecord
from ddp_magic.core.failures import RankFailure
from ddp_magic.core.witness import Attested, Closing
from ddp_magic.errors import CellError, CellInterrupted, ParityError

FAILURE = RankFailure(1, "ValueError", "x", (), 1.0)


def _closing(unmet: str = "", clash: str = "", collectives: int = 3, trained: int = 1) -> Closing:
    return Closing({"0": collectives}, unmet, clash, Attested(collectives, {"net": trained}))


def _record(*closings: Closing) -> CellRecord:
    return CellRecord((0, 1), closings=dict(enumerate(closings)))


def test_a_cell_that_ended_alike_on_all_ranks_has_not_failed() -> None:
    record = _record(_closing(), _closing())
    assert record.error((), (0, 1)) is None
    assert not record.is_over((0, 1))
    assert not record.group_is_broken


def test_a_failure_counts_as_soon_as_its_rank_has_ended() -> None:
    record = CellRecord((0, 1), failures={1: FAILURE})
    assert not record.is_over(())
    assert record.is_over((1,))


def test_what_brings_back_is_said_of_the_dead_alone() -> None:
    record = CellRecord((0, 1), died={1: "was killed, as you asked"})
    assert record.way_back((0, 1)).startswith("`%ddp heal` brings it back with rank 0's variables")
    assert CellRecord((0, 1)).way_back((0, 1)) == ""
    shown = CellInterrupted(record.story(()), fix=record.way_back((0, 1)))._render_traceback_()
    assert shown[0] == "ddp: rank 1 was killed, as you asked"
    assert shown[-2] == record.way_back((0, 1))


def test_what_was_missed_fails_the_cell_even_if_code_went_on() -> None:
    record = _record(_closing(unmet="barrier (line 2)"), _closing())
    error = record.error((), (0, 1))
    assert isinstance(error, CellError)
    assert error.cause.startswith("rank 0 waited in barrier (line 2) in vain")
    assert "All ranks have to make the same steps" in error.fix
    assert not record.group_is_broken


def test_calls_that_did_not_match_fail_the_cell_even_if_code_went_on() -> None:
    record = _record(_closing(clash="The ranks' calls do not match."), _closing())
    error = record.error((), (0, 1))
    assert isinstance(error, CellError)
    assert error.cause == "The ranks' calls do not match"


def test_the_dead_are_told_with_what_brings_them_back() -> None:
    record = CellRecord((0, 1), died={1: "was killed by SIGKILL"})
    error = record.error((), (0, 1))
    assert isinstance(error, CellError)
    assert error.cause == "rank 1 was killed by SIGKILL"
    assert "`%ddp heal` brings it back with rank 0's variables" in error.fix


@pytest.mark.parametrize("apart", [_closing(trained=2), _closing(collectives=2)])
def test_ranks_that_disagree(apart: Closing) -> None:
    record = _record(_closing(), apart)
    assert isinstance(record.error((), (0, 1)), ParityError)
    assert record.group_is_broken is (apart.counts["0"] == 2)


def test_the_errors_of_ranks_are_their_own() -> None:
    interrupted = RankFailure(0, "KeyboardInterrupt", "", (), 0.5)
    record = CellRecord(
        (0, 1), failures={0: interrupted, 1: FAILURE}, places={0: "is at line 3: sleep()"}
    )
    assert record.errors() == {0: "", 1: "ValueError: x"}
    assert record.story(()).lines()[1] == "rank 0 was interrupted at line 3: sleep()"


def test_a_store_that_was_written_in_part_breaks_the_group() -> None:
    full = RankFailure(0, "DistStoreError", "No space left on device", (), 1.0)
    assert CellRecord((0, 1), failures={0: full}).group_is_broken
