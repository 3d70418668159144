"""``mp.spawn`` on ranks that are there."""

from __future__ import annotations

import pytest

from tests.rank.harness import RankFailed, run_on_ranks, run_single

INSTALL = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from ddp_magic.rank.spawn import LiveSpawn
changes = []
live = LiveSpawn(lambda: changes.append(dist.get_world_size())); live.install()
seen = []
def work(i, *args):
    t = torch.ones(1); dist.all_reduce(t)
    seen.append((i, args, int(t), dist.get_rank(), os.environ["WORLD_SIZE"]))
"""


@pytest.mark.parametrize("how", ["mp.spawn", "mp.start_processes", "sys.modules[S].spawn"])
def test_runs_on_the_ranks(how: str) -> None:
    cell = f"S = 'torch.multiprocessing.spawn'\nresult = {how}(work, args=('a',), nprocs=2)"
    found = run_on_ranks(2, INSTALL, cell, collect=("seen", "result", "changes"))
    assert [one["seen"] for one in found] == [
        [(0, ("a",), 2, 0, "2")],
        [(1, ("a",), 2, 1, "2")],
    ]
    assert found[0]["result"] is None
    assert found[0]["changes"] == []


def test_fewer_are_a_world_of_their_own_and_the_others_go_on() -> None:
    found = run_on_ranks(
        3,
        INSTALL,
        "for _ in range(2): mp.spawn(work, nprocs=2)\nmp.spawn(work)",
        "t = torch.ones(1); dist.all_reduce(t); total = int(t); size = os.environ['WORLD_SIZE']",
        collect=("seen", "total", "size", "changes"),
    )
    of_two = (2, 0, "2")
    assert found[0]["seen"] == 2 * [(0, (), *of_two)] + [(0, (), 1, 0, "1")]
    assert found[1]["seen"] == 2 * [(1, (), 2, 1, "2")]
    assert found[2]["seen"] == []
    assert [(one["total"], one["size"]) for one in found] == 3 * [(3, "3")]
    assert found[0]["changes"] == [2, 3, 2, 3, 1, 3]


def test_an_error_is_the_users_and_the_world_is_whole_again() -> None:
    cell = """
def fail(i): raise ValueError(f"as asked on {i}")
try:
    mp.spawn(fail, nprocs=1); said = ""
except ValueError as error:
    said = str(error)
size = dist.get_world_size()
"""
    found = run_on_ranks(2, INSTALL, cell, collect=("said", "size"))
    assert [(one["said"], one["size"]) for one in found] == [("as asked on 0", 2), ("", 2)]


def test_not_joined_there_is_nothing_to_join() -> None:
    cell = "context = mp.spawn(work, nprocs=2, join=False); ended = context.join(), context.pids()"
    found = run_on_ranks(2, INSTALL, cell, collect=("ended",))
    assert found[0]["ended"] == (True, [])


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("mp.spawn(work, nprocs=0)", "would run nothing"),
        ("mp.spawn(work, nprocs=3)", "%ddp restart -n 3"),
        ("live.everyone = False; mp.spawn(work, nprocs=2)", "Leave -r/--ranks out"),
    ],
)
def test_refused(cell: str, said: str) -> None:
    with pytest.raises(RankFailed, match=said):
        run_on_ranks(2, INSTALL, cell)


def test_uninstalled_torch_has_its_own() -> None:
    found = run_single(
        """
import torch.multiprocessing as mp
from ddp_magic.rank.spawn import LiveSpawn
before = mp.spawn, mp.start_processes
live = LiveSpawn(print); live.install(); changed = mp.spawn is not before[0]
live.uninstall(); same = (mp.spawn, mp.start_processes) == before
""",
        collect=("changed", "same"),
    )
    assert found["changed"]
    assert found["same"]
