"""The variables of all ranks, side by side."""

from __future__ import annotations

import pytest

from ddp_magic.core.near import near
from ddp_magic.core.vartable import Summary, Variables, gather, size_text
from ddp_magic.errors import UsageError


def _number(text: str) -> Summary:
    return Summary("int", text, text.encode(), True, size_bytes=28)


def _tensor(
    shape: str, digest: bytes, whole: bool = True, dtype: str = "float32", device: str = "cpu"
) -> Summary:
    return Summary("Tensor", "mean 0", digest, whole, shape, dtype, device)


def _list(digest: bytes) -> Summary:
    return Summary("list", "9: [1…", digest, True)


@pytest.mark.parametrize(
    ("on", "mark", "how"),
    [
        ([_number("3"), _number("3")], "", ""),
        ([_number("3"), _number("5"), _number("3")], "≠", "value 3 / 5"),
        ([_number("3"), Summary("str", "'3'", b"", True)], "≠", "type int / str"),
        ([_tensor("(2,)", b"a"), _tensor("(3,)", b"b")], "≠", "shape (2,) / (3,)"),
        ([_tensor("(2,)", b"a"), _tensor("(2,)", b"b")], "≠", "same shape, other values"),
        ([_tensor("(2,)", b"a"), _tensor("(2,)", b"b", dtype="int64")], "≠", "float32 / int64"),
        (
            [_tensor("(2,)", b"a", device="cuda:0"), _tensor("(2,)", b"a", device="cuda:1")],
            "",
            "",
        ),
        (
            [_tensor("(2,)", b"a", device="cuda:0"), _tensor("(2,)", b"a", device="cpu")],
            "≠",
            "cuda / cpu",
        ),
        ([_tensor("(9,)", b"a", False), _tensor("(9,)", b"a", False)], "≈", ""),
        ([_tensor("(9,)", b"a", False), _tensor("(9,)", b"b", False)], "≠", "same shape, other"),
        (
            [Summary("list", "9: [1…", b"a", True), Summary("list", "9: [1…", b"b", True)],
            "≠",
            "other",
        ),
    ],
)
def test_how_a_variable_differs(on: list[Summary], mark: str, how: str) -> None:
    row = gather({rank: {"x": one} for rank, one in enumerate(on)}, {})["x"]
    assert row.mark == mark
    assert row.how == how or (how and row.how.startswith(how))


def test_who_lacks_a_variable_is_told() -> None:
    table = gather({0: {"x": _number("1")}, 1: {}, 3: {"x": _number("1")}}, {2: "rank 2 has died"})
    assert table["x"].how == "only on ranks 0, 3"
    assert table.notes() == ["rank 2 has died"]
    assert table.ranks == (0, 1, 3)


def test_what_differs_comes_first_and_what_is_alike_once() -> None:
    table = gather(
        {0: {"a": _number("1"), "b": _number("2")}, 1: {"a": _number("1"), "b": _number("7")}}, {}
    )
    assert [row.name for row in table] == ["b", "a"]
    assert [row.name for row in table.differing] == ["b"]
    headline, _, b, of_b, a = str(table).splitlines()
    assert headline == "2 variables on ranks 0-1, 1 differs"
    assert b.split("  ")[0] == "≠"
    assert "rank 0: 2" in b
    assert "value 2 / 7" in b
    assert of_b.strip() == "rank 1: 7"
    assert a.split() == ["a", "int", "1", "28", "B"]


def test_an_object_to_work_with() -> None:
    table = gather({0: {"x": _number("1")}, 1: {"x": _number("2")}}, {})
    assert len(table) == 1
    assert "x" in table
    assert "y" not in table
    with pytest.raises(KeyError):
        table["y"]
    frame = table.df
    assert list(frame["value"]) == ["1", "2"]
    assert list(frame["rank"]) == [0, 1]
    assert list(Variables((), ()).df.columns)[:2] == ["name", "rank"]


def test_nothing_of_that_name() -> None:
    with pytest.raises(UsageError, match=r"los_: there is no such variable on ranks 0-1\ndid you"):
        gather({0: {}, 1: {}}, {}, "los_", ["loss", "model"])
    assert gather({0: {}}, {}).headline == "0 variables on rank 0"
    assert gather({}, {0: "rank 0 has died"}, "x").headline == "no rank answered"


def test_names_that_are_near() -> None:
    assert near("modle", ["model", "loss"]) == "did you mean model?"
    assert near("LOSS*", ["model", "loss_total"]) == "did you mean loss_total?"
    assert near("q", ["a", "b"]) == "there are a, b"
    assert near("q", []) == "no cell has set any variable yet"


def test_sizes() -> None:
    sizes = [0, 28, 2048, 15 * 2**20, 1.5 * 2**30]
    assert [*map(size_text, sizes)] == ["0 B", "28 B", "2.0 KiB", "15 MiB", "1.5 GiB"]
