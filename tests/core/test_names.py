"""What is taken for a variable, and what is not."""

from __future__ import annotations

import re

import pytest

from ddp_magic.core.names import Step, VariablePath, parse_path, split_names
from ddp_magic.errors import UsageError


def test_names_attributes_and_indices_are_read() -> None:
    assert parse_path("model") == VariablePath("model")
    path = parse_path(" model.layers[0]['x'][-1].weight ")
    steps = (
        Step("layers", False),
        Step(0, True),
        Step("x", True),
        Step(-1, True),
        Step("weight", False),
    )
    assert path == VariablePath("model", steps)
    assert str(path) == "model.layers[0]['x'][-1].weight"
    assert VariablePath.from_wire(path.to_wire()) == path


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not a variable"),
        ("a b", "not a variable"),
        ("f()", "calls are not evaluated"),
        ("model.parameters()[0]", "calls are not evaluated"),
        ("x[i]", "'i' is not evaluated"),
        ("x[1:2]", "not evaluated"),
        ("x + 1", "'x + 1' is not evaluated"),
        ("1", "'1' is not evaluated"),
        ("x[f()]", "not evaluated"),
        ("(" * 5000, "not a variable"),
    ],
)
def test_nothing_else_is_taken(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        parse_path(text)


def test_a_line_is_split_at_blanks_outside_of_quotes_and_brackets() -> None:
    assert split_names("""a  b["x y"] c['z w'][ 0 ]  -r 0""") == [
        "a",
        'b["x y"]',
        "c['z w'][ 0 ]",
        "-r",
        "0",
    ]
    assert split_names("it's") == ["it", "'", "s"]
