"""What is advised on failures that the system words."""

from __future__ import annotations

import os

import pytest

from ddp_magic.core.advice import advice_on


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (28, "TMPDIR"),
        (98, "port"),
        (12, "-n"),
        (24, "ulimit -n"),
    ],
)
def test_the_systems_errors_have_a_fix(number: int, words: str) -> None:
    assert words in advice_on(f"OSError: [Errno {number}] {os.strerror(number)}: '/x'")


def test_nothing_is_advised_on_what_is_not_known() -> None:
    assert advice_on("RuntimeError: something else") == ""
