"""Asks the ranks for their variables and lays the answers side by side; also while a cell runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddp_magic.core.comparing import compare, wanted_blocks, with_distances
from ddp_magic.core.difference import Difference
from ddp_magic.core.names import VariablePath, parse_path
from ddp_magic.core.near import no_such
from ddp_magic.core.parts import Part, Path
from ddp_magic.core.vartable import Summary, Variables, gather
from ddp_magic.errors import DdpMagicError, UsageError
from ddp_magic.kernel.closeness import measure
from ddp_magic.kernel.world import World

_TARGET = "ddp_magic.rank.inspection"
_COMPARE_TIMEOUT_S = 120.0  # at a gigabyte a second


def variables(world: World, pattern: str, ranks: Iterable[int] | None) -> Variables:
    """Return the ranks' variables that a pattern names.

    Raises
    ------
    UsageError
        No rank has one of that name.
    """
    answers = world.ask(f"{_TARGET}:summaries", {"pattern": pattern}, ranks)
    good, missing = _split(answers, world)
    told: dict[int, dict[str, Summary]] = {rank: one[0] for rank, one in good.items()}
    known = [name for one in good.values() for name in one[1]]
    return gather(told, missing, pattern, known)


def difference(
    world: World, name: str, ranks: Iterable[int] | None, *, is_running: bool
) -> Difference:
    """Compare a variable, or a part of one, on ranks.

    Raises
    ------
    UsageError
        No rank has it, or to look it up would run the user's own code.
    """
    path = parse_path(name)
    payload = {"path": path.to_wire()}
    answers = world.ask(f"{_TARGET}:parts", payload, ranks, _COMPARE_TIMEOUT_S)
    good, missing = _split(answers, world)
    told: dict[int, Sequence[Part] | None] = {rank: one[0] for rank, one in good.items()}
    if good and all(parts is None for parts in told.values()):
        raise _unknown(path, good)
    found = replace(
        compare(str(path), told),
        missing=missing,
        is_whole=all(one[1] for one in good.values()),
        is_running=is_running,
    )
    return _measured(world, path, found, told)


def _measured(
    world: World, path: VariablePath, found: Difference, told: Mapping[int, Any]
) -> Difference:
    """Add how far the parts that differ are apart; one rank of each group tells."""
    measured: dict[Path, tuple[float, float, int, int]] = {}
    if wanted := wanted_blocks(found, told):
        payload = {"path": path.to_wire(), "wanted": wanted}
        leads = [group[0] for group in found.groups if told[group[0]] is not None]
        answers = world.ask(f"{_TARGET}:blocks", payload, leads, _COMPARE_TIMEOUT_S)
        good, _ = _split(answers, world)
        if good.keys() == set(leads):  # else one has died since
            measured = measure(list(good.values()))
    return with_distances(found, told, measured)


def _split(answers: Mapping[int, Any], world: World) -> tuple[dict[int, Any], dict[int, str]]:
    """Return what ranks answered, and why others did not.

    Raises
    ------
    UsageError
        What was asked for is refused by every rank that could answer.
    """
    good = {rank: one for rank, one in answers.items() if not isinstance(one, DdpMagicError)}
    bad = {rank: one for rank, one in answers.items() if isinstance(one, DdpMagicError)}
    refused = [one for one in bad.values() if isinstance(one, UsageError)]
    if refused and not good:
        raise refused[0]
    told = {
        rank: one.cause if one.cause.startswith(f"rank {rank} ") else f"rank {rank}: {one.cause}"
        for rank, one in bad.items()
    }
    return good, told


def _unknown(path: VariablePath, good: Mapping[int, Any]) -> UsageError:
    known = {name for one in good.values() for name in one[2]}
    if path.root in known:
        return UsageError(f"there is no {path}", fix=f"`{path.root}.` and Tab shows what there is")
    cause, fix = no_such(path.root, known, tuple(good))
    return UsageError(cause, fix=fix)
