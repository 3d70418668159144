"""Names for what is pulled, and the lines that tell of it."""

from __future__ import annotations

import pytest

from ddp_magic.core.pulled import (
    chosen_names,
    missing_cause,
    pulled_line,
    pushed_line,
    variables_to_push,
)
from ddp_magic.errors import UsageError


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("loss", "loss"),
        ("model.fc.weight", "weight"),
        ("model.layers[0].weight", "weight"),
        ("state['lr']", "lr"),
    ],
)
def test_a_part_is_called_by_its_last_name(typed: str, name: str) -> None:
    (path,) = chosen_names([typed]).items()
    assert path[0] == name
    assert list(chosen_names([typed], "mine")) == ["mine"]


@pytest.mark.parametrize(
    ("typed", "as_name", "words"),
    [
        (["layers[0]"], "", r"layers\[0\] has no name of its own\n.*--as NAME"),
        (["state['a b']"], "", "has no name of its own"),
        (["state['class']"], "", "has no name of its own"),
        (["a.w", "b.w"], "", r"a\.w and b\.w would both be w"),
        (["a", "b"], "c", "--as c: 2 variables cannot have one name"),
        (["a"], "1c", "--as 1c: not a name"),
        (["f(x)"], "", "calls are not evaluated"),
    ],
)
def test_names_that_cannot_be_are_refused(typed: list[str], as_name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        chosen_names(typed, as_name)


def test_the_same_name_twice_is_one() -> None:
    assert list(chosen_names(["a", "a"])) == ["a"]


def test_the_line_says_what_was_set() -> None:
    paths = chosen_names(["loss", "model.w"])
    both = "ddp: pulled from ranks 0-1, one value per rank: loss, w (model.w)"
    assert pulled_line(paths, (0, 1)) == both
    assert pulled_line(chosen_names(["loss"]), (1,)) == "ddp: pulled from rank 1: loss"
    assert pushed_line(["a", "b"], (0, 2, 3)) == "ddp: a, b: set on ranks 0, 2-3"


def test_who_has_it_is_said() -> None:
    cause, fix = missing_cause("x", {0: "no x", 2: "no x"}, (1, 3))
    assert cause == "ranks 0, 2: no x; ranks 1, 3 have x"
    assert fix == "-r 1,3 pulls it from there"
    assert missing_cause("x", {0: "no x"}, ()) == ("rank 0: no x", "")


def test_what_is_pushed_must_be_there() -> None:
    assert variables_to_push(["a"], {"a": 1, "b": 2}) == {"a": 1}
    with pytest.raises(UsageError, match=r"no variable 'losss' in the notebook\ndid you mean loss"):
        variables_to_push(["losss"], {"loss": 1})
    with pytest.raises(UsageError, match=r"%ddp push a\.b: not the name of a variable"):
        variables_to_push(["a.b"], {"a": 1})
