from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_magic.core.ranks import check_ranks, format_ranks, in_number, parse_ranks
from ddp_magic.errors import UsageError


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0", (0,)),
        ("0,2-3", (0, 2, 3)),
        ("3, 0", (0, 3)),
        (" 1 - 2 ", (1, 2)),
        ("2-2", (2,)),
        ("007", (7,)),
    ],
)
def test_reads_ranks_and_ranges(text: str, ranks: tuple[int, ...]) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("2-", "'2-' does not say where the range ends"),
        ("a", "'a' is not a rank"),
        ("-1", "'-1' is not a rank"),
        ("1.5", "'1.5' is not a rank"),
        ("²", "'²' is not a rank"),
        ("", "a rank is missing"),
        ("0,,1", "a rank is missing"),
        ("3-1", "'3-1' runs backwards"),
        ("0,1,0", "rank 0 is given twice"),
        ("0-2,1-4", "rank 1 is given twice"),
        ("0-99999999999", "is beyond 65536 ranks"),
    ],
)
def test_a_bad_set_names_option_value_and_syntax(text: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_ranks(text)
    assert str(caught.value).startswith(f"-r/--ranks {text or repr(text)}: ")
    assert what in caught.value.cause
    assert "0,2-3" in caught.value.fix


def test_a_rank_that_is_not_there_names_those_that_are() -> None:
    assert check_ranks([0, 3], 4) == (0, 3)
    with pytest.raises(UsageError, match=r"-r/--ranks 5: there is no rank 5\nof 4 ranks.* 0-3"):
        check_ranks([5], 4)
    with pytest.raises(UsageError, match=r": there are no ranks 1-2\nof 1 rank, choose from 0"):
        check_ranks([0, 1, 2], 1)


@given(st.sets(st.integers(0, 200), min_size=1))
def test_what_is_written_reads_back(ranks: set[int]) -> None:
    assert parse_ranks(format_ranks(ranks)) == tuple(sorted(ranks))


def test_writes_compactly() -> None:
    assert format_ranks([3, 2, 0, 2]) == "0, 2-3"
    assert format_ranks([]) == ""


def test_a_verb_agrees_with_how_many_there_are() -> None:
    assert in_number("runs", 1) == "runs"
    assert in_number("runs", 2) == "run"
    assert in_number("has stopped at line 3", 2) == "have stopped at line 3"
