"""The options of ``%%ddp`` and ``%ddp``: declared once, for parsing, help and completion."""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddp_magic.core.names import split_names
from ddp_magic.core.ranks import check_ranks, parse_ranks
from ddp_magic.errors import UsageError

_LARGEST_SEED = 2**32 - 1  # numpy takes no larger one


@dataclass(frozen=True)
class CellOptions:
    """What was typed after ``%%ddp``. None: not given."""

    nproc: int | None = None
    ranks: tuple[int, ...] | None = None
    backend: str | None = None
    batch: str = "global"
    wrap: bool = True
    shard: bool = True
    plot: bool = True
    output: str = "grouped"
    background: bool = False
    timeout_s: float | None = None
    check: bool = False
    detect_anomaly: bool = False
    help: bool = False


@dataclass(frozen=True)
class StartOptions:
    """What was typed after ``%ddp start`` or ``%ddp restart``. None: not given."""

    nproc: int | None = None
    backend: str | None = None
    seed: int | None = None

    def changed(self, **given: Any) -> StartOptions:
        """Return these with those changed that are given, which None is not.

        Raises
        ------
        UsageError
            A number is no whole number.
        """
        changes = {name: value for name, value in given.items() if value is not None}
        for name in ("nproc", "seed"):
            if not isinstance(changes.get(name, 0), int):
                raise UsageError(f"{name}={changes[name]!r}: not a whole number")
        return replace(self, **changes)


@dataclass(frozen=True)
class Program:
    """What was typed after ``%ddp run``.

    Attributes
    ----------
    name
        A script's path or, after ``-m``, a module's dotted name.
    args
        What it gets in ``sys.argv``.
    """

    name: str
    args: tuple[str, ...] = ()
    is_module: bool = False


@dataclass(frozen=True)
class Command:
    """One ``%ddp`` line.

    Attributes
    ----------
    name
        The subcommand; ``"help"`` also for ``%ddp`` alone and for ``%ddp SUB -h``.
    start
        The options of ``start`` and ``restart``; all unset for the others.
    program, cell
        Of ``run``: what to run, and how.
    names
        What stands after ``vars``, ``diff``, ``pull`` and ``push``.
    ranks
        Their ``-r``, or the one rank of ``debug``; None: all.
    as_name
        What ``pull`` is to call it in the notebook, or ``""``.
    topic
        For ``help``: the subcommand asked about, or ``""``.
    """

    name: str
    start: StartOptions = StartOptions()
    program: Program | None = None
    cell: CellOptions = CellOptions()
    names: tuple[str, ...] = ()
    ranks: tuple[int, ...] | None = None
    as_name: str = ""
    topic: str = ""


@dataclass(frozen=True)
class Option:
    """One option: how it is spelt, what it takes, what it sets."""

    flags: tuple[str, ...]
    dest: str
    help: str
    metavar: str = ""  # empty: a switch, which takes no value
    choices: tuple[str, ...] = ()
    read: Callable[[str, str], Any] | None = None  # (option's spelling, text) -> value
    sets: bool = True  # what a switch sets

    @property
    def takes_value(self) -> bool:
        return bool(self.metavar or self.choices)

    @property
    def spelling(self) -> str:
        """The flags as help and errors name them: ``-n/--nproc``."""
        return "/".join(self.flags)

    @property
    def usage(self) -> str:
        """The flags with the value they take: ``-n/--nproc N``."""
        value = "|".join(self.choices) or self.metavar
        return f"{self.spelling} {value}".rstrip()

    def parse(self, text: str) -> Any:
        """Turn the text of the value into the value; raise `UsageError` if it is none."""
        if self.choices and text not in self.choices:
            raise UsageError(
                f"{self.spelling} {_shown(text)}: not one of {_listing(self.choices)}",
                fix=_nearest(text, self.choices),
            )
        return self.read(self.spelling, text) if self.read else text


@dataclass(frozen=True)
class Operands:
    """What a subcommand takes beside its options."""

    usage: str
    what: str  # one of them, for errors
    least: int = 0
    most: float = math.inf

    def check(self, given: Sequence[str], place: str) -> None:
        """Raise `UsageError` if these are too few or too many."""
        if len(given) < self.least:
            raise UsageError(f"{place}: {self.what} is missing", fix=f"write {place} {self.usage}")
        if len(given) > self.most:
            extra = _shown(given[int(self.most)])
            raise UsageError(f"{place}: {extra} is too much", fix=f"write {place} {self.usage}")


@dataclass(frozen=True)
class Subcommand:
    """One ``%ddp`` subcommand."""

    name: str
    help: str
    options: tuple[Option, ...] = ()
    operands: Operands | None = None


def _integer(least: int, most: int | None = None) -> Callable[[str, str], int]:
    allowed = f"a whole number from {least}" + (f" to {most}" if most is not None else " up")

    def read(option: str, text: str) -> int:
        value = int(text) if re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII) else None
        if value is None or value < least or (most is not None and value > most):
            raise UsageError(f"{option} {_shown(text)}: not {allowed}")
        return value

    return read


def _seconds(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(
            f"{option} {_shown(text)}: not a number of seconds above 0",
            fix="leave the option out for no limit",
        )
    return value


def _ranks(option: str, text: str) -> tuple[int, ...]:
    return parse_ranks(text, option=option)


_NPROC = Option(
    ("-n", "--nproc"),
    "nproc",
    "number of ranks; default one per visible GPU, or 2 on the CPU",
    metavar="N",
    read=_integer(1),
)
_BACKEND = Option(
    ("--backend",),
    "backend",
    "how ranks communicate; auto: NCCL on GPUs, gloo on the CPU",
    choices=("auto", "nccl", "gloo"),
)
_SEED = Option(
    ("--seed",),
    "seed",
    "the one seed that every rank starts from",
    metavar="S",
    read=_integer(0, _LARGEST_SEED),
)
_HELP = Option(("-h", "--help"), "help", "show this help")

CELL_OPTIONS: tuple[Option, ...] = (
    _NPROC,
    Option(
        ("-r", "--ranks"),
        "ranks",
        "run on these ranks only, such as 0,2-3: nothing is wrapped or sharded on a subset",
        metavar="RANKS",
        read=_ranks,
    ),
    _BACKEND,
    Option(
        ("--batch",),
        "batch",
        "a loader's batch size is that of all ranks together (default), or of each rank",
        choices=("global", "per-rank"),
    ),
    Option(("--no-wrap",), "wrap", "leave models alone: no gradient is averaged", sets=False),
    Option(("--no-shard",), "shard", "leave loaders alone: each rank gets all data", sets=False),
    Option(("--no-plot",), "plot", "no live loss curve", sets=False),
    Option(
        ("--output",),
        "output",
        "other ranks' lines: those that differ (default), all, or none",
        choices=("grouped", "all", "rank0"),
    ),
    Option(("-b", "--background"), "background", "return at once with a handle on the cell"),
    Option(
        ("--timeout",),
        "timeout_s",
        "stop the cell after S seconds; default no limit",
        metavar="S",
        read=_seconds,
    ),
    Option(("--check",), "check", "compare the models of all ranks after the cell"),
    Option(
        ("--detect-anomaly",),
        "detect_anomaly",
        "fail where a NaN or infinite value first appears, and name it",
    ),
    _HELP,
)

_MODULE = Option(("-m",), "is_module", "run a module, as `python -m` does")
_RUN_OPTIONS = (_MODULE, *CELL_OPTIONS)
_START_OPTIONS = (_NPROC, _BACKEND, _SEED, _HELP)
_OF_RANKS = Option(
    ("-r", "--ranks"), "ranks", "of these ranks only, such as 0,2-3", metavar="RANKS", read=_ranks
)
_AS_NAME = Option(("--as",), "as_name", "what to call it in the notebook", metavar="NAME")

SUBCOMMANDS: tuple[Subcommand, ...] = (
    Subcommand("start", "start the ranks", _START_OPTIONS),
    Subcommand("stop", "end the ranks; their variables are gone", (_HELP,)),
    Subcommand(
        "restart",
        "end the ranks and start new ones, as before but for these options",
        _START_OPTIONS,
    ),
    Subcommand("heal", "replace dead ranks by new ones with a living rank's variables", (_HELP,)),
    Subcommand("run", "run a torchrun or mp.spawn script on the ranks", _RUN_OPTIONS),
    Subcommand(
        "interrupt",
        "stop the running cell, as Stop does; once more: kill what does not end",
        (_HELP,),
    ),
    Subcommand("status", "show every rank's process, device and state", (_HELP,)),
    Subcommand(
        "vars",
        "show the variables of every rank, those that differ first",
        (_OF_RANKS, _HELP),
        Operands("[PATTERN]", "a pattern", most=1),
    ),
    Subcommand(
        "diff",
        "compare a variable on all ranks: a number, tensor, model, optimizer, container",
        (_OF_RANKS, _HELP),
        Operands("NAME", "the name", 1, 1),
    ),
    Subcommand("where", "show where every rank is, also while a cell runs", (_OF_RANKS, _HELP)),
    Subcommand("plot", "draw loss and step time of every rank, of the last cell", (_HELP,)),
    Subcommand(
        "debug",
        "look, with pdb, into the frames in which the last cell failed",
        (_HELP,),
        Operands("[RANK]", "a rank", most=1),
    ),
    Subcommand(
        "pull",
        "bring variables from the ranks to the notebook",
        (_OF_RANKS, _AS_NAME, _HELP),
        Operands("NAME...", "a name", 1),
    ),
    Subcommand(
        "push",
        "send variables of the notebook to the ranks",
        (_OF_RANKS, _HELP),
        Operands("NAME...", "a name", 1),
    ),
    Subcommand("doctor", "say what is wrong here, and what mends it; starts no ranks", (_HELP,)),
    Subcommand("session", "return the session, for Python", (_HELP,)),
    Subcommand("help", "show this help", (_HELP,)),
)


_NAMING = [[sub.name] for sub in SUBCOMMANDS if sub.operands is not None]


def module_names(modules: str | Iterable[Any]) -> tuple[str, ...]:
    """Return the names of modules to import; one may be given by itself.

    Raises
    ------
    UsageError
        Something given is not the name of a module.
    """
    names = [modules] if isinstance(modules, str) else list(modules)
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"preload: {name!r} is not the name of a module")
    return tuple(names)


def parse_cell_line(line: str) -> CellOptions:
    """Read what stands after ``%%ddp``.

    Raises
    ------
    UsageError
        Names the option, the value and what is allowed.
    """
    values = _parse_options(_tokens(line), CELL_OPTIONS, "%%ddp")
    _check_together(values)
    return CellOptions(**values)


def parse_command(line: str) -> Command:
    """Read what stands after ``%ddp``.

    Raises
    ------
    UsageError
        Names the subcommand or option, the value and what is allowed.
    """
    tokens = _tokens(line) if line.split()[:1] not in _NAMING else split_names(line)
    if not tokens or tokens[0] in _HELP.flags:
        return Command("help")
    if tokens[0] == "help" and len(tokens) == 2 and tokens[1] not in _HELP.flags:
        return Command("help", topic=_find_subcommand(tokens[1]).name)
    subcommand = _find_subcommand(tokens[0])
    if subcommand.name == "run":
        return _parse_run(tokens[1:])
    place = f"%ddp {subcommand.name}"
    if subcommand.operands is not None:
        return _parse_operands(tokens[1:], subcommand, subcommand.operands, place)
    values = _parse_options(tokens[1:], subcommand.options, place)
    if values.pop("help", False):
        return Command("help", topic="" if subcommand.name == "help" else subcommand.name)
    if subcommand.name == "where":
        return Command("where", **values)
    return Command(subcommand.name, start=StartOptions(**values))


def help_text(topic: str = "") -> str:
    """Help on ``%ddp`` (``""``), on one of its subcommands, or on ``"%%ddp"``."""
    if topic == "%%ddp":
        return _help_page("%%ddp [options]", "run the cell on the ranks", CELL_OPTIONS)
    if topic:
        subcommand = _find_subcommand(topic)
        usage = f"%ddp {topic}" + (" [options]" if len(subcommand.options) > 1 else "")
        usage += " script.py [arguments]" if topic == "run" else ""
        usage += f" {subcommand.operands.usage}" if subcommand.operands else ""
        return _help_page(usage, subcommand.help, subcommand.options)
    rows = [(f"%ddp {sub.name}", sub.help) for sub in SUBCOMMANDS]
    page = [*_table(rows), "", "%ddp SUBCOMMAND -h says more.", "", help_text("%%ddp")]
    return "\n".join(page)


def _parse_run(tokens: list[str]) -> Command:
    """Read options, then a program; what follows is the program's, options or not."""
    by_flag = {flag: option for option in _RUN_OPTIONS for flag in option.flags}
    end = 0
    while end < len(tokens) and tokens[end].startswith("-"):
        flag, text = _split_token(tokens[end], by_flag)
        option = by_flag.get(flag)
        end += 2 if option is not None and option.takes_value and text is None else 1
    values = _parse_options(tokens[:end], _RUN_OPTIONS, "%ddp run")
    if values.pop("help", False):
        return Command("help", topic="run")
    _check_together(values)
    is_module = values.pop("is_module", False)
    if end >= len(tokens):
        raise UsageError(
            "%ddp run: what to run is missing",
            fix="write %ddp run script.py, or %ddp run -m package.module",
        )
    program = Program(tokens[end], tuple(tokens[end + 1 :]), is_module)
    return Command("run", program=program, cell=CellOptions(**values))


def _parse_operands(
    tokens: list[str], subcommand: Subcommand, operands: Operands, place: str
) -> Command:
    """Read operands and options, in any order."""
    by_flag = {flag: option for option in subcommand.options for flag in option.flags}
    given, typed, rest = [], [], iter(tokens)
    for token in rest:
        if not token.startswith("-"):
            given.append(token)
            continue
        typed.append(token)
        flag, text = _split_token(token, by_flag)
        if flag in by_flag and by_flag[flag].takes_value and text is None:
            typed += [value for value in (next(rest, None),) if value is not None]
    values = _parse_options(typed, subcommand.options, place)
    if values.pop("help", False):
        return Command("help", topic=subcommand.name)
    operands.check(given, place)
    if subcommand.name == "debug":
        return Command("debug", ranks=_one_rank(place, given[0]) if given else None)
    return Command(subcommand.name, names=tuple(given), **values)


def _one_rank(place: str, text: str) -> tuple[int, ...]:
    ranks = _ranks(place, text)
    if len(ranks) > 1:
        raise UsageError(f"{place} {text}: one rank is looked into first", fix=f"write {place} 0")
    return ranks


def _tokens(line: str) -> list[str]:
    line = re.sub(r"(?<=\d)\s*,\s+(?=\d)", ",", line)  # ranks as they are shown: 0, 2-3
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"{line.strip()}: {str(error).lower()}") from None


def _parse_options(tokens: Sequence[str], options: Sequence[Option], place: str) -> dict[str, Any]:
    by_flag = {flag: option for option in options for flag in option.flags}
    values: dict[str, Any] = {}
    rest = iter(tokens)
    for token in rest:
        flag, text = _split_token(token, by_flag)
        option = by_flag.get(flag)
        if option is None:
            raise _unknown(token, flag, by_flag, place)
        if option.dest in values:
            raise UsageError(f"{option.spelling} is given twice")
        values[option.dest] = _value(option, text, rest)
    return values


def _split_token(token: str, by_flag: dict[str, Option]) -> tuple[str, str | None]:
    """Split ``--opt=value``, ``-n=4`` and ``-n4`` in two."""
    flag, equals, text = token.partition("=")
    if equals:
        return flag, text
    short = by_flag.get(token[:2])
    if len(token) > 2 and not token.startswith("--") and short and short.takes_value:
        return token[:2], token[2:]
    return token, None


def _value(option: Option, text: str | None, rest: Iterator[str]) -> Any:
    if not option.takes_value:
        if text is not None:
            raise UsageError(f"{option.spelling} takes no value, but got {_shown(text)}")
        return option.sets
    if text is None:
        text = next(rest, None)
    if text is None:
        raise UsageError(f"{option.spelling}: the value is missing", fix=f"write {option.usage}")
    return option.parse(text)


def _check_together(values: dict[str, Any]) -> None:
    if values.get("ranks") and values.get("nproc"):
        check_ranks(values["ranks"], values["nproc"])
    if "batch" in values and not values.get("shard", True):
        raise UsageError(
            f"--batch {values['batch']} with --no-shard: batches are cut only where loaders "
            "are sharded",
            fix="leave one of the two out",
        )


def _find_subcommand(name: str) -> Subcommand:
    for subcommand in SUBCOMMANDS:
        if subcommand.name == name:
            return subcommand
    names = [subcommand.name for subcommand in SUBCOMMANDS]
    if name.startswith("-"):
        raise UsageError(f"%ddp {name}: not a command", fix="%%ddp runs a cell, and takes options")
    raise UsageError(f"%ddp {name}: not one of {_listing(names)}", fix=_nearest(name, names))


def _unknown(token: str, flag: str, by_flag: dict[str, Option], place: str) -> UsageError:
    if not token.startswith("-"):
        what = f"{place}: {_shown(token)} is not an option"
        fix = "the cell's code begins on the next line" if place == "%%ddp" else ""
        return UsageError(what, fix=fix or f"{place} -h lists the options")
    usages = [option.usage for option in dict.fromkeys(by_flag.values())]
    return UsageError(
        f"{place} has no option {flag}",
        fix=_nearest(flag.replace("_", "-"), by_flag),
        context="options: " + ", ".join(usages),
    )


def _nearest(typed: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(typed.lower(), list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""


def _listing(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def _shown(text: str) -> str:
    return text if text.strip() else repr(text)


def _help_page(usage: str, summary: str, options: Sequence[Option]) -> str:
    rows = [(", ".join(o.flags) + o.usage[len(o.spelling) :], o.help) for o in options]
    return "\n".join([usage, f"    {summary}", "", *_table(rows)])


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(left) for left, _ in rows)
    return [f"{left:<{width}}  {right}" for left, right in rows]
