"""Collectives that do not match, that not every rank makes, or that are right and look odd."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from ddp_magic import CellError, CellInterrupted, Session
from ddp_magic.testing import RecordingView
from tests.kernel.conftest import Run

IMPORTS = "import threading, time, torch, torch.distributed as dist\nt = torch.ones(3)\n"

WRONG = {
    "an operation that differs": (
        "dist.all_reduce(t, op=dist.ReduceOp.SUM if rank else dist.ReduceOp.MAX)",
        "The ranks' calls do not match: rank 0 all_reduce of [3] float32, MAX (line 3), rank 1 "
        "all_reduce of [3] float32 (line 3)",
    ),
    "one that does not wait, and differs": (
        "dist.all_reduce(t, op=dist.ReduceOp.SUM if rank else dist.ReduceOp.MAX, async_op=True)"
        ".wait()",
        "The ranks' calls do not match",
    ),
    "one that does not wait, told when one waits": (
        "works = [dist.all_reduce(t.clone(), op=dist.ReduceOp.SUM if rank else dist.ReduceOp.MAX,"
        " async_op=True)]\ndist.barrier()",
        "The ranks' calls do not match: rank 0 all_reduce of [3] float32, MAX (line 3), rank 1 "
        "all_reduce of [3] float32 (line 3)",
    ),
    "a type that differs": (
        "dist.broadcast(t.double() if rank else t, 0)",
        "rank 0 broadcast of [3] float32 (line 3), rank 1 broadcast of [3] float64 (line 3)",
    ),
    "an object of one rank alone": (
        "if rank: dist.all_gather_object([None, None], 'x')",
        "rank 1 waited in all_gather_object of [1] int64 (line 3) in vain; rank 0 had ended",
    ),
    "a group that one rank makes": (
        "if rank: dist.new_group([0, 1])",
        "rank 1 waited in new_group([0, 1]) (line 3) in vain",
    ),
    "another call where all came to expect one": (
        "for i in range(6):\n"
        "    if rank and i == 4: dist.all_reduce(torch.ones(5))\n    else: dist.all_reduce(t)",
        "all_reduce",
    ),
    "asked after again and again": (
        "if rank:\n    work = dist.all_reduce(t, async_op=True)\n"
        "    while not work.is_completed(): time.sleep(0.01)",
        "rank 1 waited in ",
    ),
    "swallowed": (
        "for _ in range(2 + rank):\n    try: dist.barrier()\n    except RuntimeError: pass",
        "(line 4) in vain; rank 0 had ended the cell",
    ),
}
RIGHT = {
    "an operation in another form": (
        "dist.all_reduce(t, op=dist.ReduceOp(dist.ReduceOp.SUM) if rank else dist.ReduceOp.SUM)"
    ),
    "the default, and the same given": (
        "dist.all_reduce(t) if rank else dist.all_reduce(t, dist.ReduceOp.SUM)"
    ),
    "a source in another form": (
        "dist.broadcast(t, group_src=1) if rank else dist.broadcast(t, src=1)"
    ),
    "a group of ranks in another order": (
        "dist.all_reduce(t, group=dist.new_group([0, 1] if rank else [1, 0]))"
    ),
    "another shape of as many": "dist.all_reduce(t.view(3, 1) if rank else t)",
    "objects of other sizes": "ddp.gather('x' * 10**rank)",
    "a scatter from one": (
        "dist.scatter(torch.zeros(1), [torch.ones(1)] * 2 if rank == 0 else None, src=0)"
    ),
    "a rank that comes late": "time.sleep(1.5 * rank); dist.all_reduce(t)",
    "served by another thread": (
        "def serve(): time.sleep(3); dist.send(t, 1 - rank)\n"
        "thread = threading.Thread(target=serve); thread.start()\n"
        "dist.recv(t, 1 - rank); thread.join()"
    ),
    "trained on one rank while the other waits": (
        "if rank == 0:\n    own = torch.nn.Linear(2, 1); own(torch.ones(1, 2)).sum().backward()\n"
        "dist.barrier()"
    ),
}


def _check_that_all_works(run: Run) -> None:
    assert run("dist.all_reduce(total := torch.ones(1)); print(int(total))").stdout == "2\n"


@pytest.mark.parametrize("name", WRONG)
def test_it_fails_by_itself_with_the_cause(session: Session, run: Run, name: str) -> None:
    code, said = WRONG[name]
    with pytest.raises(CellError) as caught:
        run(IMPORTS + code)
    story = caught.value.story
    assert said in "\n".join([story.summary(), *story.lines()])
    _check_that_all_works(run)


@pytest.mark.parametrize("name", RIGHT)
def test_it_is_left_alone(session: Session, run: Run, name: str) -> None:
    run(IMPORTS + RIGHT[name])
    _check_that_all_works(run)


def test_who_takes_the_error_goes_on(session: Session, run: Run) -> None:
    view = RecordingView()
    with pytest.raises(CellError, match="do not match") as caught:
        session.run(
            f"{IMPORTS}try: dist.all_reduce(torch.ones(1 + rank))\n"
            "except RuntimeError: print('taken')\n"
            "dist.all_reduce(total := torch.ones(1)); print(int(total))\ndist.barrier()",
            view=view,
        )
    assert view.stdout == "taken\n2\n"
    assert "rank 0 all_reduce of [1] float32 (line 3), rank 1 all_reduce of [2]" in str(
        caught.value
    )
    _check_that_all_works(run)


def test_it_is_said_that_groups_have_gone(session: Session, run: Run) -> None:
    run(f"{IMPORTS}own = dist.new_group([0, 1])")
    with pytest.raises(CellError):
        run("if rank: dist.all_reduce(t, group=own)")
    said = "make those of dist.new_group anew"
    assert any(said in notice for notice in run("pass").notices)
    assert not any(said in notice for notice in run("pass").notices)


def test_a_collective_of_some_ranks_alone_is_told_as_such(session: Session, run: Run) -> None:
    with pytest.raises(CellError, match="The cell runs on rank 0 alone"):
        run(f"{IMPORTS}dist.all_reduce(t)", ranks=(0,))
    _check_that_all_works(run)


def test_stop_ends_a_wait_that_is_no_known_call(session: Session, run: Run) -> None:
    run(IMPORTS)
    view = RecordingView()
    stop = threading.Thread(target=lambda: view.await_stdout("there") and session.interrupt())
    stop.start()
    with pytest.raises(CellInterrupted):
        session.run(
            "if rank: time.sleep(600)\nelse:\n    work = dist.all_reduce(t, async_op=True)\n"
            "    print('there', flush=True); work.get_future().wait()",
            view=view,
        )
    stop.join()
    _check_that_all_works(run)


@pytest.mark.parametrize("delay_s", [0.0002, 0.001, 0.003])
def test_stop_as_the_cell_is_sent(session: Session, run: Run, delay_s: float) -> None:
    run(IMPORTS)
    press = threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT))

    def send() -> None:
        press.start()
        run("time.sleep(600)")

    with pytest.raises(KeyboardInterrupt):
        send()
    press.join()
    _check_that_all_works(run)
