"""Who gets which part: equal sizes for all ranks and, cut exactly, equal weights for samples."""

from __future__ import annotations

from collections import Counter

import pytest

from ddp_magic.core.shards import Place


def _ranks(world_size: int) -> list[Place]:
    return [Place(rank, world_size) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("size", [0, 1, 2, 5, 12, 50, 64])
def test_exact_parts_weigh_every_sample_alike(size: int, world_size: int) -> None:
    batch = list(range(size))
    parts = [batch[place.exact(size)] for place in _ranks(world_size)]
    assert len({len(part) for part in parts}) == 1
    counts = Counter(sample for part in parts for sample in part)
    assert set(counts) == set(batch)
    assert len(set(counts.values())) <= 1


def test_batch_that_divides_is_cut_in_order() -> None:
    assert [list(range(8))[place.exact(8)] for place in _ranks(4)] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]


def test_no_part_is_larger_than_it_must_be() -> None:
    assert Place(1, 4).exact(50) == slice(25, 50)
    assert Place(3, 4).exact(50) == slice(25, 50)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("size", [1, 2, 5, 12, 50])
def test_padded_parts_are_equal_and_hold_everything(size: int, world_size: int) -> None:
    parts = [place.padded(size) for place in _ranks(world_size)]
    assert {len(part) for part in parts} == {-(-size // world_size)}
    assert {position for part in parts for position in part} == set(range(size))


def test_dealt_items_come_equally_often() -> None:
    hands = [list(place.deal("abcdefg")) for place in _ranks(3)]
    assert hands == [["a", "d", "g"], ["b", "e", "g"], ["c", "f", "g"]]


@pytest.mark.parametrize(
    ("size", "world_size", "parts"),
    [(20, 2, 2), (2, 2, 1), (4, 4, 2), (8, 8, 4), (1, 2, 1), (6, 4, 2)],
)
def test_a_part_has_as_many_rows_as_it_needs(size: int, world_size: int, parts: int) -> None:
    places = [Place(rank, world_size, least=2) for rank in range(world_size)]
    assert {place.parts(size) for place in places} == {parts}
    held = [position for place in places for position in range(size)[place.exact(size)]]
    assert sorted(held) == sorted([*range(size)] * (world_size // parts))
