"""What the notebook asks of this rank's variables; called also while a cell runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ddp_magic.core.names import VariablePath
from ddp_magic.core.parts import BLOCK, Part, Path
from ddp_magic.core.vartable import Summary
from ddp_magic.rank import peek
from ddp_magic.rank.engine import current
from ddp_magic.rank.flat import beside_the_cell, numbers_of
from ddp_magic.rank.lookup import Missing, find
from ddp_magic.rank.parts import Limits, Taken
from ddp_magic.rank.shell import this_shell
from ddp_magic.rank.summaries import chosen, summary
from ddp_magic.rank.variables import variables
from ddp_magic.rank.wording import cut

_MOST_NAMES = 1_000
_LONGEST_REASON = 80


def summaries(payload: dict[str, Any]) -> tuple[dict[str, Summary], list[str]]:
    """Return what is shown of the variables that ``pattern`` names; if none, what names there are.

    One whose value cannot be read is among them, with the reason.
    """
    held = _held()
    wanted = chosen(held, payload["pattern"])
    with _apart():
        told = {name: _told(value) for name, value in wanted.items()}
    return told, [] if told else sorted(held)[:_MOST_NAMES]


def parts(payload: dict[str, Any]) -> tuple[list[Part] | None, bool, list[str]]:
    """Return the parts of a variable, with checksums of all that is in them.

    Returns
    -------
    list of Part or None
        None if there is no such variable.
    bool
        Whether these are all.
    list of str
        What names there are, if there is none.
    """
    path = VariablePath.from_wire(payload["path"])
    try:
        value = find(path, _held())
    except Missing:
        return None, True, sorted(_held())[:_MOST_NAMES]
    with _apart():
        taken = Taken(value, Limits())
        found = list(taken)
    return found, taken.is_whole, []


def blocks(payload: dict[str, Any]) -> dict[tuple[Path, int], Any]:
    """Return blocks of tensors as numbers: of each path in ``wanted``, those of these indices.

    What is there no more, or holds no numbers, is left out.
    """
    wanted: Mapping[Path, list[int]] = payload["wanted"]
    try:
        value = find(VariablePath.from_wire(payload["path"]), _held())
    except Missing:
        return {}
    taken = Taken(value, Limits(), keep=True)
    for _ in taken:
        pass
    told: dict[tuple[Path, int], Any] = {}
    with _apart():
        for path in wanted.keys() & taken.flats.keys():
            flat = taken.flats[path]
            for index in wanted[path]:
                stop = min(flat.count, (index + 1) * BLOCK)
                numbers = numbers_of(flat, flat.read(index * BLOCK, stop))
                if numbers is not None:
                    told[path, index] = numbers
    return told


def _told(value: Any) -> Summary:
    try:
        return summary(value)
    except (RuntimeError, ValueError, TypeError) as error:  # torch's: a tensor that has gone
        text = cut(f"{type(error).__name__}: {error}", _LONGEST_REASON)
        return Summary(peek.class_name(type(value)), text, b"", is_whole=False)


def _held() -> dict[str, Any]:
    return variables(this_shell().user_ns_hidden)


def _apart() -> Any:
    return beside_the_cell(torch.device(current().membership.device))
