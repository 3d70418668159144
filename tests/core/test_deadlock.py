"""Which ranks wait for what cannot come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddp_magic.core.deadlock import Look, Op, clash, in_vain
from ddp_magic.core.where import Place

ALL = (0, 1, 2)
AT = Place(3, collective="all_reduce")
BACKWARD = Place(3, in_backward=True)


def _op(number: int, group: str = "0", members: tuple[int, ...] = ALL, size: int = 4) -> Op:
    return Op(group, number, members, "all_reduce", ((size,),), ("Float",))


def _in(*ops: Op, place: Place = AT, **counts: int) -> Look:
    latest = {op.group: op.number for op in ops} | {k.strip("_"): v for k, v in counts.items()}
    return Look(place, latest, ops)


def test_a_rank_that_has_ended_the_cell_joins_no_more() -> None:
    waiting = {1: _in(_op(5)), 2: _in(_op(5))}
    assert in_vain(waiting, {0: {"0": 4}}) == {1, 2}
    assert in_vain(waiting, {0: {"0": 5}}) == set()  # it has joined this one


def test_a_rank_that_computes_may_yet_join() -> None:
    assert in_vain({1: _in(_op(5)), 2: _in(_op(5))}, {}) == set()
    assert in_vain({0: Look(Place(9), {"0": 4}), 1: _in(_op(5))}, {}) == set()


def test_all_in_one_collective_wait_for_nothing_but_its_end() -> None:
    assert in_vain({rank: _in(_op(5)) for rank in ALL}, {}) == set()


def test_ranks_that_wait_for_each_other() -> None:
    other = Op("1", 3, ALL, "broadcast")
    looks = {
        0: _in(_op(5), _1=2),
        1: _in(other, _0=4),
        2: _in(_op(5), _1=2),
    }
    assert in_vain(looks, {}) == {0, 1, 2}


def test_what_is_agreed_before_a_collective_is_waited_for_as_well() -> None:
    looks = {0: Look(AT, {"0": 4}, (), awaits=(1,)), 1: _in(_op(5), place=BACKWARD)}
    looks[1] = Look(BACKWARD, {"0": 5}, (_op(5, members=(0, 1)),))
    assert in_vain(looks, {}) == {0, 1}
    computing = {0: looks[0], 1: Look(Place(4), {"0": 5})}
    assert in_vain(computing, {}) == set()


def test_who_waits_for_the_dead_waits_in_vain() -> None:
    assert in_vain({0: _in(_op(5))}, {}, dead={2}) == {0}
    assert in_vain({0: _in(_op(5, members=(0, 1)))}, {}, dead={2}) == set()


def test_different_calls_of_one_number() -> None:
    barrier = Op("0", 5, ALL, "barrier")
    looks = {0: _in(_op(5)), 1: _in(barrier), 2: _in(_op(5))}
    assert in_vain(looks, {}) == {0, 1, 2}
    assert clash(looks) == (
        "rank 0 is in all_reduce #5 of [4] float, rank 1 in barrier #5: they do not match"
    )
    assert clash({0: _in(_op(5)), 1: _in(_op(5, size=8))}) != ""
    assert clash({0: _in(_op(5)), 1: _in(_op(6))}) == ""


def test_a_wait_for_one_of_several_is_in_vain_if_all_are() -> None:
    wait = Place(3, collective="wait")
    ops = (_op(4), _op(5))
    assert in_vain({0: _in(*ops, place=wait)}, {1: {"0": 4}, 2: {"0": 4}}) == set()
    assert in_vain({0: _in(*ops, place=wait)}, {1: {"0": 3}, 2: {"0": 4}}) == {0}
    assert in_vain({0: _in(*ops, place=BACKWARD)}, {1: {"0": 4}, 2: {"0": 4}}) == {0}


def test_what_is_not_known_to_be_waited_for_is_not_decided_here() -> None:
    assert in_vain({0: Look(AT, {"0": 4})}, {1: {"0": 3}}) == set()


@given(
    counts=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    waiting=st.sets(st.sampled_from(ALL)),
    ended=st.sets(st.sampled_from(ALL)),
)
def test_who_waits_in_vain_is_never_released(
    counts: list[int], waiting: set[int], ended: set[int]
) -> None:
    """Let every other rank join all that it can: those found stuck are still not through."""
    looks = {
        rank: _in(_op(counts[rank])) if rank in waiting else Look(Place(1), {"0": counts[rank]})
        for rank in ALL
        if rank not in ended
    }
    ended_counts = {rank: {"0": counts[rank]} for rank in ended}
    vain = in_vain(looks, ended_counts)
    moving = [rank for rank in looks if rank not in vain]
    for rank in vain:
        others = {other for other in ALL if counts[other] < counts[rank]}
        assert others - set(moving)
    for rank in moving:
        if rank in waiting:
            behind = [other for other in ALL if counts[other] < counts[rank]]
            assert all(other in moving for other in behind)


def test_it_is_read_from_what_a_rank_sends() -> None:
    look = _in(_op(5), place=BACKWARD)
    wire = {
        "place": vars(BACKWARD),
        "counts": {"0": 5},
        "ops": [{**vars(_op(5)), "members": [0, 1, 2], "sizes": [[4]], "dtypes": ["Float"]}],
        "awaits": [],
        "has_threads": False,
        "cpu_s": 0.0,
        "at_s": 0.0,
    }
    assert Look.from_wire(wire) == look
    assert look.where == "backward(), all_reduce #5 of [4] float (line 3)"


def test_what_cannot_end_dooms_whoever_asks_after_it() -> None:
    polls = _in(_op(5), place=Place(3, source="while not work.is_completed(): pass"))
    assert in_vain({0: polls}, {1: {"0": 4}, 2: {"0": 5}}) == {0}
    assert in_vain({0: polls}, {1: {"0": 5}, 2: {"0": 5}}) == set()
    served = Look(polls.place, polls.counts, polls.ops, has_threads=True)
    assert in_vain({0: served}, {1: {"0": 4}}) == set()


def test_another_thread_may_join_for_a_rank_that_waits() -> None:
    looks = {
        0: _in(_op(5, members=(0, 1)), _1=2),
        1: Look(AT, {"0": 4, "1": 3}, (Op("1", 3, (0, 1), "broadcast"),), has_threads=True),
    }
    assert in_vain(looks, {}) == set()
