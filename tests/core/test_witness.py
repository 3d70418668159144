"""Whether ranks agree as a cell ends."""

from __future__ import annotations

import pytest

from ddp_magic.core.witness import Attested, disagreement, managed_drift

NET = "net (Net)"


@pytest.mark.parametrize(
    ("attested", "said"),
    [
        ([Attested(3, {NET: 1}), Attested(3, {NET: 1})], ""),
        ([Attested(3, {}), Attested(3, {NET: 1})], ""),
        ([Attested(None, {}), Attested(7, {})], ""),
        (
            [Attested(3, {NET: 1}), Attested(3, {NET: 2}), Attested(3, {NET: 2})],
            "net (Net) is not the same on all ranks any more: rank 0 and ranks 1-2 differ",
        ),
        (
            [Attested(5, {}), Attested(3, {}), Attested(5, {}), Attested(4, {})],
            "The ranks did not make the same collectives: rank 1 2 fewer than ranks 0, 2, "
            "rank 3 1 fewer than ranks 0, 2",
        ),
    ],
)
def test_disagreement(attested: list[Attested], said: str) -> None:
    assert disagreement(dict(enumerate(attested))) == said


def test_what_is_the_users_own_may_differ() -> None:
    apart = {0: Attested(1, {}, {"DDP(Net)": 1}), 1: Attested(1, {}, {"DDP(Net)": 2})}
    assert disagreement(apart) == ""
    assert managed_drift(apart).startswith("DDP(Net) is not the same on all ranks any more")


def test_over_the_wire() -> None:
    wire = {"collectives": 3, "trained": {NET: 1}, "managed": {}}
    assert Attested.from_wire(wire) == Attested(3, {NET: 1})
