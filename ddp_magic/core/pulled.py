"""What variables that are pulled are called in the notebook, and what is said of them."""

from __future__ import annotations

import difflib
import keyword
from collections.abc import Iterable, Mapping, Sequence

from ddp_magic.core.names import VariablePath, parse_path
from ddp_magic.core.ranks import format_ranks, in_number, named
from ddp_magic.errors import UsageError

_OF_RANKS = ("rank", "world_size", "local_rank", "device", "ddp")


def chosen_names(names: Sequence[str], as_name: str = "") -> dict[str, VariablePath]:
    """Return what to pull, by what it is to be called in the notebook.

    Parameters
    ----------
    names
        As typed: ``loss``, ``model.fc.weight``, ``state["lr"]``.
    as_name
        The name to give to the only one; by default each is called by its last part.

    Raises
    ------
    UsageError
        Something has no name of its own, two would have the same, or one is no name.
    """
    if as_name and len(names) != 1:
        raise UsageError(
            f"--as {as_name}: {len(names)} variables cannot have one name", fix="pull one at a time"
        )
    if as_name and not _is_name(as_name):
        raise UsageError(f"--as {as_name}: not a name for a variable")
    paths: dict[str, VariablePath] = {}
    for text in names:
        path = parse_path(text)
        name = as_name or _last_name(path)
        if name in paths and paths[name] != path:
            raise UsageError(
                f"{paths[name]} and {path} would both be {name} in the notebook",
                fix="pull them one by one, with --as NAME",
            )
        paths[name] = path
    return paths


def missing_cause(path: str, missing: Mapping[int, str], having: Iterable[int]) -> tuple[str, str]:
    """Return why a variable was not pulled, and what to do.

    Parameters
    ----------
    missing
        What each rank that lacks it says.
    having
        The ranks that have it.
    """
    having = tuple(having)
    told = "; ".join(f"{named(ranks)}: {text}" for text, ranks in _grouped(missing).items())
    if not having:
        return told, ""
    has = in_number("has", len(having))
    ranks = format_ranks(having).replace(" ", "")
    return f"{told}; {named(having)} {has} {path}", f"-r {ranks} pulls it from there"


def pulled_line(paths: Mapping[str, VariablePath], ranks: Iterable[int]) -> str:
    """Return the line that says what was set in the notebook."""
    ranks = tuple(ranks)
    told = [name if str(path) == name else f"{name} ({path})" for name, path in paths.items()]
    each = ", one value per rank" if len(ranks) > 1 else ""
    return f"ddp: pulled from {named(ranks)}{each}: {', '.join(told)}"


def pushed_line(names: Iterable[str], ranks: Iterable[int]) -> str:
    """Return the line that says what was set on the ranks."""
    return f"ddp: {', '.join(names)}: set on {named(ranks)}"


def variables_to_push(names: Sequence[str], namespace: Mapping[str, object]) -> dict[str, object]:
    """Return the variables of the notebook that were named.

    Raises
    ------
    UsageError
        There is no such variable, or it is no name.
    """
    for name in names:
        if not _is_name(name):
            raise UsageError(f"%ddp push {name}: not the name of a variable")
        if name in _OF_RANKS:
            raise UsageError(
                f"%ddp push {name}: each rank has its own", fix="give it another name here first"
            )
        if name not in namespace:
            close = difflib.get_close_matches(name, list(namespace), n=1)
            raise UsageError(
                f"%ddp push {name}: there is no variable {name!r} in the notebook",
                fix=f"did you mean {close[0]}?" if close else "",
            )
    return {name: namespace[name] for name in names}


def _last_name(path: VariablePath) -> str:
    last = str(path.steps[-1].key) if path.steps else path.root
    if not _is_name(last):
        raise UsageError(
            f"{path} has no name of its own", fix=f"give it one: %ddp pull {path} --as NAME"
        )
    return last


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _grouped(told: Mapping[int, str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for rank, text in told.items():
        groups.setdefault(text, []).append(rank)
    return groups
