"""Tables of variables that any notebook shows."""

from __future__ import annotations

from xml.etree import ElementTree

from ddp_magic.core.comparing import compare
from ddp_magic.core.parts import Part
from ddp_magic.core.vartable import Summary, gather
from ddp_magic.ui.inspection import DifferenceView, VariablesView


def _number(text: str) -> Summary:
    return Summary("int", text, text.encode(), True)


def _read(html: str) -> ElementTree.Element:
    assert "<style" not in html  # which untrusted notebooks strip
    return ElementTree.fromstring(f"<div>{html}</div>")


def _rows(html: str) -> list[list[tuple[str, str]]]:
    """Return text and span of each cell."""
    rows = _read(html).iter("tr")
    return [[("".join(td.itertext()), td.get("colspan", "1")) for td in row] for row in rows]


def test_variables_stand_below_their_ranks() -> None:
    told = {rank: {"a": _number("<1>"), "b": _number(str(rank // 2))} for rank in (0, 1, 2)}
    view = VariablesView.of(gather(told, {3: "rank 3 was killed"}))
    head, b, a = _rows(view._repr_html_())
    assert [text for text, _ in head][3:7] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert [text for text, _ in b][:3] == ["≠", "b", "int"]
    assert b[3:6] == [("0", "2"), ("1", "1"), ("no answer", "1")]
    assert b[-1] == ("value 0 / 1", "1")
    assert a[3:5] == [("<1>", "3"), ("no answer", "1")]
    assert "rank 3 was killed" in "".join(_read(view._repr_html_()).itertext())
    assert view["a"].name == "a"
    assert repr(view) == str(view)


def test_nothing_to_show() -> None:
    assert "0 variables on rank 0" in VariablesView.of(gather({0: {}}, {}))._repr_html_()


def test_a_difference() -> None:
    parts = [Part((".a<b",), "int", {}, str(n), str(n).encode(), number=n) for n in (1, 3)]
    view = DifferenceView.of(compare("x", {0: [parts[0]], 1: [parts[1]]}))
    assert not view
    _, row = _rows(view._repr_html_())
    assert [text for text, _ in row] == ["a<b", "rank 0 / rank 1", "value 1 / 3"]
    same = DifferenceView.of(compare("x", {0: [parts[0]], 1: [parts[0]]}))
    assert same.equal
    assert "bit-identical" in same._repr_html_()
