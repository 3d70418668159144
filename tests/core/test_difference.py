"""Whether values are the same on all ranks, and where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ddp_magic.core.comparing import compare, wanted_blocks, with_distances
from ddp_magic.core.difference import Difference, Distance
from ddp_magic.core.parts import BLOCK, Part, Path, shown

_Told = dict[int, Sequence[Part] | None]


def _tensor(path: Path, *digests: str, shape: str = "(2,)", dtype: str = "float32") -> Part:
    octets = b"".join(one.encode().ljust(8) for one in digests)
    count = len(digests) * BLOCK - 1
    return Part(path, "Tensor", {"shape": shape, "dtype": dtype}, digest=octets, count=count)


def _number(path: Path, number: float) -> Part:
    return Part(path, "float", {}, str(number), str(number).encode(), number=number)


def _compared(*told: Sequence[Part] | None) -> Difference:
    return compare("x", dict(enumerate(told)))


def test_equal() -> None:
    found = _compared([_tensor((), "a")], [_tensor((), "a")])
    assert found
    assert str(found) == "x is bit-identical on ranks 0-1 (1 tensor of 65,535 elements)"
    assert not replace(found, is_whole=False)
    assert not replace(found, missing={2: "rank 2 has died"})
    assert "as far as it was looked at" in replace(found, is_whole=False).headline


def test_one_rank_alone() -> None:
    assert "nothing to compare" in str(_compared([_number((), 1)]))


@pytest.mark.parametrize(
    ("first", "second", "how"),
    [
        (_number((), 1), _tensor((), "a"), "type float / Tensor"),
        (_tensor((), "a"), _tensor((), "a", shape="(3,)"), "shape (2,) / (3,)"),
        (_tensor((), "a"), _tensor((), "a", dtype="int32"), "dtype float32 / int32"),
        (_tensor((), "a"), _tensor((), "b"), "(2,) float32"),
        (_number((), 1), _number((), 3), "value 1 / 3"),
        (Part((), "str", {}, "'a…'", b"1"), Part((), "str", {}, "'a…'", b"2"), "other contents"),
    ],
)
def test_how(first: Part, second: Part, how: str) -> None:
    found = _compared([first], [second], [first])
    assert not found
    assert [part.how for part in found.parts] == [how]
    assert found.groups == ((0, 2), (1,))
    assert found.headline == "x differs: ranks 0, 2 / rank 1"


def test_the_first_names_that_differ() -> None:
    holder = Part((), "Net", {})
    layer, weight, bias = (
        (".layers", ".0"),
        (".layers", ".0", ".weight"),
        (".layers", ".0", ".bias"),
    )
    one = [holder, Part(layer, "Linear", {}), _tensor(weight, "a"), _tensor(bias, "a")]
    other = [holder, Part(layer, "Linear", {}), _tensor(weight, "b"), _tensor(bias, "a")]
    found = _compared(one, one, other)
    assert [part.name for part in found.parts] == ["layers.0.weight"]
    assert found.parts[0].groups == ((0, 1), (2,))


def test_nothing_is_told_within_what_differs_in_kind() -> None:
    def holder(count: int) -> list[Part]:
        items = [_number((f"[{index}]",), 10 * count) for index in range(count)]
        return [Part((), "list", {"length": str(count)}), *items]

    found = _compared(holder(2), holder(3))
    assert [(part.name, part.how) for part in found.parts] == [("", "length 2 / 3")]


def test_what_only_some_ranks_have() -> None:
    own = Part((".more",), "dict", {})
    inner = _number((".more", "['a']"), 1)
    found = _compared([Part((), "C", {})], [Part((), "C", {}), own, inner])
    assert [(part.name, part.how) for part in found.parts] == [("more", "only on rank 1")]
    missing = _compared(None, [_number((), 1)], [_number((), 1)])
    assert [part.how for part in missing.parts] == ["only on ranks 1-2"]
    assert missing.groups == ((0,), (1, 2))


def test_blocks_that_differ_are_fetched_all_or_some_of_each() -> None:
    told: _Told = {0: [_tensor((), "a", "b", "c")], 1: [_tensor((), "a", "x", "c")]}
    assert wanted_blocks(compare("x", told), told) == {(): [1]}
    many, others = [str(i) for i in range(100)], [f"-{i}" for i in range(100)]
    large, small = (".large",), (".small",)
    told = {
        0: [_tensor(large, *many), _tensor(small, "a")],
        1: [_tensor(large, *others), _tensor(small, "b")],
    }
    wanted = wanted_blocks(compare("x", told), told)
    assert wanted[small] == [0]
    assert len(wanted[large]) == 31
    assert wanted[large][0] == 0
    assert wanted[large][-1] > 90


def test_distances_are_told_and_samples_as_such() -> None:
    told: _Told = {0: [_tensor((), "a", "b")], 1: [_tensor((), "a", "c")]}
    found = compare("x", told)
    whole = with_distances(found, told, {(): (0.5, 0.1, 3, BLOCK - 1)})
    assert whole.largest == 0.5
    assert "largest difference 0.5 (relative 0.1), in 3 of 131,071 elements" in str(whole)
    some = with_distances(found, told, {(): (0.5, 0.1, 3, 1000)})
    assert "largest difference at least 0.5 (relative at least 0.1)" in str(some)
    assert "3 of 1,000 elements looked at" in str(some)
    bits = with_distances(found, told, {(): (0.0, 0.0, 2, BLOCK - 1)})
    assert "largest difference 0: other bits (such as -0.0) in 2 of 131,071" in str(bits)


@pytest.mark.parametrize(
    ("numbers", "distance"),
    [
        ((1.0, 3.0, 2.0), (2.0, 2 / 3)),
        ((float("nan"), 1.0), (float("inf"), float("inf"))),
        ((-0.0, 0.0), (0.0, 0.0)),
        ((2**62, 2**62 - 1), (1.0, 2.0**-62)),
    ],
)
def test_numbers_are_compared_as_such(
    numbers: Sequence[float], distance: tuple[float, float]
) -> None:
    told: _Told = {rank: [_number((), number)] for rank, number in enumerate(numbers)}
    (part,) = with_distances(compare("x", told), told, {}).parts
    assert part.distance == Distance(*distance, 1, 1, 1)


def test_what_was_not_looked_into_is_named() -> None:
    part = Part((".lock",), "lock", {}, unseen="a lock cannot be looked into")
    found = replace(_compared([part], [part]), is_whole=False, is_running=True)
    assert "not looked into: lock (a lock cannot be looked into)" in str(found)
    assert "a cell is running" in str(found)


def test_paths_are_written_as_users_do() -> None:
    assert shown((".layers", ".0", ".weight")) == "layers.0.weight"
    assert shown(("['layers.0.weight']",)) == "layers.0.weight"
    assert shown((".state", "[0]", "['exp_avg']")) == "state[0]['exp_avg']"
