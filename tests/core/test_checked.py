"""What `--check` says of the ranks' checksums."""

from __future__ import annotations

from ddp_magic.core.cellrecord import CellRecord
from ddp_magic.core.checked import Checked, confirmation, first_difference
from ddp_magic.core.witness import Closing
from ddp_magic.errors import ParityError

_SAME = {"net (Net)": {"0.weight": "aa", "1.running_mean (buffer)": "bb"}}
_ADAM = {"Adam of net (Net)": {"param_groups[0]['lr']": "cc"}}


def _record(*checked: Checked | None) -> CellRecord:
    closings = {rank: Closing({}, checked=one) for rank, one in enumerate(checked)}
    return CellRecord(tuple(range(len(checked))), closings=closings)


def test_equal() -> None:
    checked = {0: Checked(_SAME, _ADAM), 1: Checked(_SAME, _ADAM)}
    assert first_difference(checked) == ""
    told = "--check: net (Net), Adam of net (Net): 3 checksums, the same on ranks 0-1"
    assert confirmation(checked) == told
    assert "nothing to compare" in confirmation({0: Checked()})


def test_the_first_that_differs_fails_the_cell() -> None:
    other = Checked({"net (Net)": {**_SAME["net (Net)"], "0.weight": "xx"}}, _ADAM)
    error = _record(Checked(_SAME, _ADAM), other, Checked(_SAME, _ADAM)).error((), (0, 1, 2))
    assert isinstance(error, ParityError)
    told = "net (Net): 0.weight is not the same on all ranks: ranks 0, 2 / rank 1."
    assert error.cause == told
    assert "rank 0's values" in error.fix


def test_buffers_and_optimizers_have_advice_of_their_own() -> None:
    buffers = {"net (Net)": {**_SAME["net (Net)"], "1.running_mean (buffer)": "xx"}}
    error = _record(Checked(_SAME), Checked(buffers)).error((), (0, 1))
    assert error is not None
    assert "model.eval()" in error.fix
    rate = {"Adam of net (Net)": {"param_groups[0]['lr']": "xx"}}
    error = _record(Checked(_SAME, _ADAM), Checked(_SAME, rate)).error((), (0, 1))
    assert error is not None
    assert error.cause.startswith("Adam of net (Net): param_groups[0]['lr'] is not the same")
    assert "lr" in error.fix


def test_what_some_ranks_have_let_go_of_is_not_compared() -> None:
    """A traceback may keep a model that has another one's name by now."""
    labels = {"old": "net (Net)", "new": "net (Net)"}
    both = Checked({"old": {"weight": "xx"}, "new": {"weight": "aa"}}, labels=labels)
    one = Checked({"new": {"weight": "aa"}}, labels=labels)
    assert first_difference({0: one, 1: both}) == ""
    told = "--check: net (Net): 1 checksum, the same on ranks 0-1"
    assert confirmation({0: one, 1: both}) == confirmation({0: both, 1: one}) == told
    other = Checked({"new": {"weight": "bb"}}, labels=labels)
    assert first_difference({0: other, 1: both}).startswith("net (Net): weight is not the same")
    assert "nothing to compare" in confirmation({0: one, 1: Checked()})


def test_a_rank_that_failed_leaves_the_check_to_its_failure() -> None:
    assert _record(Checked(_SAME), None).checked == {}
