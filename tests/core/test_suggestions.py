"""What completion offers on lines of the magics, and where the code of a cell begins."""

from __future__ import annotations

import pytest

from ddp_magic.core.suggestions import Suggestions, body_at, suggest


@pytest.mark.parametrize(
    ("line", "fragment", "words"),
    [
        ("%%ddp --ba", "--ba", ("--backend", "--batch", "--background")),
        ("%%ddp --batch ", "", ("global", "per-rank")),
        ("%%ddp --batch=p", "p", ("per-rank",)),
        ("%%ddp --batch global --ba", "--ba", ("--backend", "--background")),
        ("%%ddp -n ", "", ()),
        ("%%ddp -b --back", "--back", ("--backend",)),
        ("%ddp st", "st", ("start", "stop", "status")),
        ("%ddp start --backend n", "n", ("nccl",)),
        ("  %ddp restart --s", "--s", ("--seed",)),
        ("%ddp help pu", "pu", ("pull", "push")),
        ("%ddp pull --", "--", ("--ranks", "--as", "--help")),
        ("%ddp nothing x", "x", ()),
    ],
)
def test_options_and_subcommands(line: str, fragment: str, words: tuple[str, ...]) -> None:
    assert suggest(line) == Suggestions(fragment, words)


def test_variables_are_the_ranks() -> None:
    assert suggest("%ddp pull model.fc.w") == Suggestions("model.fc.w", of_ranks=True)
    assert suggest("%ddp vars ") == Suggestions("", of_ranks=True)


@pytest.mark.parametrize("line", ["%ddp push x", "%ddp run tr", "x = 1", "%dd", "%%ddp", "%%ddpx "])
def test_the_rest_is_left_to_others(line: str) -> None:
    assert suggest(line) is None


def test_where_the_code_begins() -> None:
    assert body_at("%%ddp -b\nmodel.la", 17) == ("model.la", 8)
    assert body_at("\n%%ddp\n\nx", 9) == ("\nx", 2)
    assert body_at("%%ddp -b\nx", 8) is None
    assert body_at("%%ddp", 5) is None
    assert body_at("%%ddpx\nx", 8) is None
    assert body_at("x = 1\n%%ddp\nx", 13) is None
