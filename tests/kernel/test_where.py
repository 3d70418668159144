"""Where every rank is, asked while a cell runs, waits, or holds everything up."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddp_magic import Session, StateError, UsageError
from ddp_magic.core.stacks import Stacks
from ddp_magic.testing import RecordingView

_DEADLINE_S = 30

_UNTIL_GO = "    while not os.path.exists({go!r}): time.sleep(0.01)\n"


@contextmanager
def running(session: Session, code: str) -> Iterator[None]:
    """Run a cell in the background, and end it."""
    cell = session.run(code, view=RecordingView(), background=True, header="%%ddp -b\n")
    assert cell is not None
    try:
        yield
    finally:
        cell.interrupt()
        assert cell.wait(_DEADLINE_S)


def where_until(session: Session, seen: Callable[[Stacks], bool]) -> Stacks:
    """Ask until ranks are where they are expected to be."""
    until_s = time.monotonic() + _DEADLINE_S
    while not seen(found := session.where()):
        assert time.monotonic() < until_s, str(found)
        time.sleep(0.02)
    return found


def test_where_no_cell_runs(session: Session) -> None:
    assert str(session.where()) == "no cell runs; ranks 0-1 are ready"
    assert str(session.where([1])) == "no cell runs; rank 1 is ready"
    with pytest.raises(UsageError, match="there is no rank 7"):
        session.where([7])


def test_what_takes_long_to_answer_is_not_waited_for(session: Session) -> None:
    session.run(
        "import sys, threading, types\nslow, go = types.ModuleType('slow'), threading.Event()\n"
        f"slow.wait = lambda payload: go.wait({_DEADLINE_S})\nsys.modules['slow'] = slow"
    )
    answers: list[object] = []
    asks = threading.Thread(target=lambda: answers.append(session.ask_one("slow:wait", {}, 30)))
    asks.start()
    where_until(session, lambda stacks: "thread ddp-asked-slow" in str(stacks))
    assert not answers
    session.run("go.set()\ndel sys.modules['slow'], slow, go")
    asks.join(_DEADLINE_S)
    assert answers == [True]


def test_ranks_are_told_apart_by_where_they_are(session: Session, tmp_path: Path) -> None:
    code = (
        "import os, time, torch, torch.distributed as dist\n"
        "def meet():\n"
        "    dist.all_reduce(torch.ones(4))\n"
        "if rank == 0:\n    meet()\n"
        f"else:\n{_UNTIL_GO.format(go=str(tmp_path / 'go'))}"
    )
    with running(session, code):
        found = where_until(session, lambda s: "waits in" in str(s) and "is at line 8" in str(s))
    cell, waits, meets, calls, folded, other, place = str(found).splitlines()
    number = cell.partition(" ")[0]
    assert cell == f"{number} runs on ranks 0-1"
    assert waits == "rank 0 waits in all_reduce of [4] float32 (line 4) for rank 1"
    assert meets == f"    {number} line 4, in meet: dist.all_reduce(torch.ones(4))"
    assert calls == f"    {number} line 6: meet()"
    assert folded.endswith("frames of libraries")
    assert other == "rank 1 is at line 8"
    assert place.startswith(f"    {number} line 8: while not os.path.exists(")


def test_a_collective_in_backward_is_known_by_its_number(session: Session, tmp_path: Path) -> None:
    code = (
        "import os, time, torch\n"
        "model = torch.nn.Linear(3, 1, bias=False)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for step in range(3):\n"
        "    loss = model(torch.ones(2, 3)).sum()\n"
        "    if rank == 1 and step == 2:\n"
        f"    {_UNTIL_GO.format(go=str(tmp_path / 'go'))}"
        "    loss.backward()\n"
    )
    with running(session, code):
        found = where_until(session, lambda s: "#" in str(s) and "is at line 8" in str(s))
    assert "rank 0 waits in backward(), all_reduce #" in str(found)
    assert "of [3] float (line 9)" in str(found)
    (waiting, _) = found.groups
    assert any("torch/autograd" in line for line in waiting.full())


def test_ranks_in_step_are_one_group_with_their_threads(session: Session, tmp_path: Path) -> None:
    code = (
        "import os, threading, time\n"
        "def fetch():\n"
        f"{_UNTIL_GO.format(go=str(tmp_path / 'go'))}"
        "fetcher = threading.Thread(target=fetch, name='fetcher')\nfetcher.start()\n"
        "fetcher.join()\n"
    )

    def all_there(stacks: Stacks) -> bool:
        return len(stacks.groups) == 1 and "fetcher.join()" in str(stacks)

    with running(session, code):
        found = where_until(session, all_there)
        (tmp_path / "go").touch()
    assert "thread fetcher: " in str(found)
    assert "in fetch: while not" in str(found)
    assert "ranks 0-1 are at line 7" in str(found)


def test_a_rank_that_can_answer_nothing_is_known_all_the_same(
    session: Session, tmp_path: Path
) -> None:
    """Compiled code holds the GIL there, until this test lets it go on."""
    lock = tmp_path / "lock"
    code = (
        "import ctypes, fcntl, os, time\n"
        f"file = open({str(lock)!r}, 'w')\n"
        "if rank == 1:\n"
        "    ctypes.PyDLL(None).flock(file.fileno(), fcntl.LOCK_EX)\n"
        "while True: time.sleep(0.01)\n"
    )
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with running(session, code):
            found = where_until(session, lambda s: "lets no other run" in str(s))
            fcntl.flock(held, fcntl.LOCK_UN)
    assert "rank 1 is at line 5, in compiled code that lets no other run" in str(found)
    assert " line 5: ctypes.PyDLL(None).flock(file.fileno(), fcntl.LOCK_EX)" in str(found)


def test_a_rank_that_has_died_is_told_with_its_cause(session: Session) -> None:
    pid = session.status().ranks[1].pid
    os.kill(pid, signal.SIGKILL)
    found = where_until(session, lambda s: "killed" in str(s))
    assert str(found).startswith("no cell runs; rank 0 is ready; rank 1 was killed")
    session.heal()
    assert str(session.where()) == "no cell runs; ranks 0-1 are ready"


def test_without_ranks_it_says_how_to_start_them() -> None:
    session = Session()
    try:
        with pytest.raises(StateError, match="%ddp start"):
            session.where()
    finally:
        session.stop()
