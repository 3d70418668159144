"""The README says what there is: every command and option, and none besides."""

from __future__ import annotations

import re
from pathlib import Path

from ddp_magic.core.options import CELL_OPTIONS, SUBCOMMANDS

_README = Path(__file__).parents[1] / "README.md"


def _first_cells(header: str) -> list[str]:
    """Return the first column of the table below a header line."""
    rows = _README.read_text().split(f"\n{header}\n", 1)[1].split("\n\n", 1)[0].splitlines()
    return [re.split(r"(?<!\\)\|", row)[1] for row in rows[1:]]


def test_every_command_is_in_the_table() -> None:
    told = "".join(_first_cells("| call | does |"))
    named = re.findall(r"%ddp (\w+)", told)
    assert dict.fromkeys(named) == dict.fromkeys(
        sub.name for sub in SUBCOMMANDS if sub.name in named
    )
    assert {sub.name for sub in SUBCOMMANDS} == set(named)


def test_every_option_is_in_the_table() -> None:
    told = "".join(_first_cells("| option | does |"))
    named = set(re.findall(r"(?<![\w-])(--?[a-z][a-z-]*)", told))
    flags = {flag for option in CELL_OPTIONS for flag in option.flags}
    assert named == flags - {"-h", "--help"}
