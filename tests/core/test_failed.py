"""Which ranks `%ddp debug` can look into."""

from __future__ import annotations

import pytest

from ddp_magic.core.failed import Failed
from ddp_magic.errors import StateError, UsageError

_FAILED = Failed(number=4, name="In[7]", ranks=(0, 2, 3), first=2)


def test_the_first_that_failed_is_the_first_to_be_looked_into() -> None:
    assert _FAILED.beginning_with(None) == _FAILED
    assert _FAILED.beginning_with(3).first == 3


def test_the_lowest_is_if_the_first_has_gone() -> None:
    left = _FAILED.without({2})
    assert left.ranks == (0, 3)
    assert left.beginning_with(None).first == 0


def test_a_rank_that_has_not_failed_is_refused() -> None:
    _FAILED.check(None)
    _FAILED.check(3)
    with pytest.raises(UsageError, match=r"%ddp debug 1: .*In\[7\] failed, but on ranks 0, 2-3"):
        _FAILED.check(1)
    with pytest.raises(UsageError, match="on ranks 0, 3"):
        _FAILED.without([2]).check(2)


def test_there_is_nothing_where_all_that_failed_have_ended() -> None:
    with pytest.raises(StateError, match=r"on which In\[7\] failed have ended"):
        _FAILED.without((0, 1, 2, 3)).check(None)
