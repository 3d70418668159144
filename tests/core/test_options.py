from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_magic.core.options import (
    CELL_OPTIONS,
    SUBCOMMANDS,
    CellOptions,
    Command,
    StartOptions,
    help_text,
    parse_cell_line,
    parse_command,
)
from ddp_magic.errors import UsageError


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("", CellOptions()),
        ("  # all the defaults, don't ask", CellOptions()),
        ("-n 4", CellOptions(nproc=4)),
        ("-n4", CellOptions(nproc=4)),
        ("-n=4 # four", CellOptions(nproc=4)),
        ("--nproc=4", CellOptions(nproc=4)),
        ("-r 0,2-3", CellOptions(ranks=(0, 2, 3))),
        ("-r 0, 2-3 -b", CellOptions(ranks=(0, 2, 3), background=True)),
        ("--ranks '1'", CellOptions(ranks=(1,))),
        ("--backend gloo", CellOptions(backend="gloo")),
        ("--batch per-rank", CellOptions(batch="per-rank")),
        ("--no-wrap --no-shard --no-plot", CellOptions(wrap=False, shard=False, plot=False)),
        ("--output rank0", CellOptions(output="rank0")),
        ("--background", CellOptions(background=True)),
        ("--timeout 1.5", CellOptions(timeout_s=1.5)),
        ("-n 4 -r 3", CellOptions(nproc=4, ranks=(3,))),
        ("-h", CellOptions(help=True)),
    ],
)
def test_reads_a_cell_line(line: str, options: CellOptions) -> None:
    assert parse_cell_line(line) == options


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-n 0", "-n/--nproc 0: not a whole number from 1 up"),
        ("-n -1", "-n/--nproc -1: not a whole number"),
        ("-n two", "-n/--nproc two: not a whole number"),
        ("-n 1_0", "-n/--nproc 1_0: not a whole number"),
        ("-n", "-n/--nproc: the value is missing\nwrite -n/--nproc N"),
        ("-n 2 --nproc 3", "-n/--nproc is given twice"),
        ("-r a", "-r/--ranks a: 'a' is not a rank"),
        ("-r 2-", "-r/--ranks 2-: '2-' does not say where"),
        ("-n 2 -r 5", "-r/--ranks 5: there is no rank 5\nof 2 ranks, choose from 0-1"),
        ("--backend mpi", "--backend mpi: not one of auto, nccl or gloo"),
        ("--output group", "--output group: not one of grouped, all or rank0\ndid you mean group"),
        ("--output=", "--output '': not one of"),
        ("--batch", "--batch: the value is missing\nwrite --batch global|per-rank"),
        ("--batch global --no-shard", "--batch global with --no-shard"),
        ("--timeout 0", "--timeout 0: not a number of seconds above 0"),
        ("--timeout nan", "--timeout nan: not a number of seconds"),
        ("--timeout inf", "--timeout inf: not a number of seconds"),
        ("--no-wrap=1", "--no-wrap takes no value, but got 1"),
        ("--rank 0", "%%ddp has no option --rank\ndid you mean --ranks?\noptions: -n/--nproc N, "),
        ("--no_wrap", "%%ddp has no option --no_wrap\ndid you mean --no-wrap?"),
        ("-x", "%%ddp has no option -x\noptions: "),
        ("x = 1", "%%ddp: x is not an option\nthe cell's code begins on the next line"),
        ("-r '0", "no closing quotation"),
    ],
)
def test_a_bad_cell_line_says_what_is_allowed(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_cell_line(line)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("", Command("help")),
        ("-h", Command("help")),
        ("help", Command("help")),
        ("help -h", Command("help")),
        ("help start", Command("help", topic="start")),
        ("start -h", Command("help", topic="start")),
        ("stop --help", Command("help", topic="stop")),
        ("start", Command("start")),
        (
            "start -n 2 --backend nccl --seed 7  # go",
            Command("start", StartOptions(nproc=2, backend="nccl", seed=7)),
        ),
        ("restart --seed 0", Command("restart", StartOptions(seed=0))),
        ("status", Command("status")),
        ("vars", Command("vars")),
        ("vars loss* -r 0-1", Command("vars", names=("loss*",), ranks=(0, 1))),
        ("diff state['a b'][0]", Command("diff", names=("state['a b'][0]",))),
        ("pull -r 1 x y --as z", Command("pull", names=("x", "y"), ranks=(1,), as_name="z")),
        ("where -r 0", Command("where", ranks=(0,))),
        ("debug 1", Command("debug", ranks=(1,))),
        ("doctor", Command("doctor")),
        ("push -h", Command("help", topic="push")),
    ],
)
def test_reads_a_command(line: str, command: Command) -> None:
    assert parse_command(line) == command


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "strat",
            "%ddp strat: not one of start, stop, restart, heal, run, interrupt, status, vars, diff,"
            " where, plot, debug, pull, push, doctor, session or help\n"
            "did you mean st",
        ),
        ("start --sed 1", "%ddp start has no option --sed\ndid you mean --seed?"),
        ("start 4", "%ddp start: 4 is not an option\n%ddp start -h lists the options"),
        ("start --seed 4294967296", "--seed 4294967296: not a whole number from 0 to 4294967295"),
        ("stop -n 2", "%ddp stop has no option -n"),
        ("help me", "%ddp me: not one of"),
        ("diff", "%ddp diff: the name is missing\nwrite %ddp diff NAME"),
        ("diff a b", "%ddp diff: b is too much"),
        ("pull -r", "-r/--ranks: the value is missing"),
        ("vars --as x", "%ddp vars has no option --as"),
        ("where x", "%ddp where: x is not an option"),
    ],
)
def test_a_bad_command_says_what_is_allowed(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_command(line)


def test_help_names_every_option_and_subcommand() -> None:
    cell_help = help_text("%%ddp")
    assert all(flag in cell_help for option in CELL_OPTIONS for flag in option.flags)
    assert all(f"%ddp {sub.name} " in help_text() for sub in SUBCOMMANDS)
    assert "--seed S" in help_text("start")


@given(st.text("-nrbh=#' ,0123ab\\\"x", max_size=20))
def test_whatever_is_typed_is_read_or_refused(line: str) -> None:
    with suppress(UsageError):
        assert isinstance(parse_cell_line(line), CellOptions)
