"""Stop, whatever the ranks are at: the prompt is back, one short error, nothing is left running."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from ddp_magic import CellError, CellInterrupted, Session, StateError
from ddp_magic.errors import plain
from ddp_magic.testing import RecordingView

_DEADLINE_S = 20.0
_DATA = """
import torch, time
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 10_000
    def __getitem__(self, i):
        if i > 200: time.sleep(100)
        return torch.rand(4), torch.rand(1)
"""


class Pressing(RecordingView):
    """Presses Stop when "go" is shown."""

    pressed_s = float("nan")

    def text(self, stream: str, text: str) -> None:
        super().text(stream, text)
        if "go\n" in text and self.pressed_s != self.pressed_s:
            self.pressed_s = time.monotonic()
            os.kill(os.getpid(), signal.SIGINT)


def stop(session: Session, code: str) -> tuple[Pressing, str]:
    """Run a cell that prints "go" and is stopped then; return its view and its error as shown."""
    view = Pressing()
    with pytest.raises(CellInterrupted) as caught:
        session.run(code, view=view)
    assert time.monotonic() - view.pressed_s < _DEADLINE_S
    await_all(session)
    return view, plain("\n".join(caught.value._render_traceback_()))


@pytest.mark.parametrize(
    "wait",
    [
        "await asyncio.sleep(100)",
        "await asyncio.Event().wait()",
        "await asyncio.gather(asyncio.sleep(100), asyncio.Event().wait())",
        "await asyncio.to_thread(time.sleep, 3)",
        "await asyncio.sleep(0); time.sleep(100)",
        "while True: await asyncio.sleep(0)",
        "asyncio.run(asyncio.sleep(100))",
        "time.sleep(100)",
        "threading.Event().wait()",
        "queue.Queue().get()",
        "subprocess.run(['sleep', '100'])",
        "!sleep 100",
        "text = !sleep 100",
        "torch.rand(2500, 2500) @ torch.rand(2500, 2500); time.sleep(100)",
    ],
)
def test_what_waits_is_stopped(session: Session, wait: str) -> None:
    imports = "import asyncio, queue, subprocess, threading, time, torch\n"
    view, told = stop(session, f"{imports}print('go', flush=True)\n{wait}\nprint('went on')")
    assert "went on" not in view.stdout
    assert "CancelledError" not in told
    assert len(told.splitlines()) < 20, told


_LOOPS = {
    "evaluation": "with torch.no_grad():\n    for i, _ in enumerate(DataLoader({}), 1):\n"
    "        if i == 3: print('go', flush=True)",
    "training": "net = torch.nn.Linear(4, 1)\nopt = torch.optim.SGD(net.parameters(), 0.01)\n"
    "for i, (x, y) in enumerate(DataLoader({}), 1):\n"
    "    (net(x) - y).square().mean().backward()\n    opt.step()\n"
    "    if i == 3: print('go', flush=True)",
}


@pytest.mark.parametrize("loop", _LOOPS)
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_the_workers_of_a_loader_are_ended(session: Session, loop: str, context: str) -> None:
    loader = f"Slow(), batch_size=8, num_workers=2, multiprocessing_context='{context}'"
    view, told = stop(session, _DATA + _LOOPS[loop].format(loader))
    assert len(told.splitlines()) < 20, told
    assert view.stderr == "" or context == "spawn"  # one that begins may leave a broken pipe
    assert await_no(workers_of(session)) == []


def test_persistent_workers_are_there_for_the_next_iteration(session: Session) -> None:
    loader = "kept = DataLoader(list(range(800)), 8, num_workers=2, persistent_workers=True)"
    loop = "for i, _ in enumerate(kept):\n    if i == 3: print('go', flush=True); time.sleep(100)"
    session.run(_DATA + loader, view=RecordingView())
    stop(session, loop)
    session.run("assert len(list(kept)) == 100", view=RecordingView(), ranks=(0,))
    for worker in workers_of(session):
        worker.kill()
    assert await_no(workers_of(session)) == []
    session.run("assert len(list(kept)) == 100\ndel kept", view=RecordingView(), ranks=(0,))


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_worker_that_dies_is_an_error_of_the_cells(session: Session, end: str) -> None:
    code = f"import os\n{_DATA.replace('time.sleep(100)', end)}" + _LOOPS["training"].format(
        "Slow(), batch_size=8, num_workers=2"
    )
    with pytest.raises(CellError, match="DataLoader worker"):
        session.run(code, view=RecordingView())


def test_a_process_that_a_rank_forks_does_not_leave_as_the_rank_would(session: Session) -> None:
    session.run(
        "import atexit, multiprocessing, time\n"
        "atexit.register(print, 'left', flush=True)\n"
        "fork = multiprocessing.get_context('fork')\nruns = fork.Event()\n"
        "def live():\n    runs.set()\n    while True: time.sleep(0.1)\n"
        "child = fork.Process(target=live)\n"
        "child.start()\nassert runs.wait(60)\nchild.terminate()\n"
        "child.join()\ncode = child.exitcode",
        view=(view := RecordingView()),
        ranks=(0,),
    )
    assert session.pull("code", 0) == -signal.SIGTERM
    assert "left" not in view.stdout


def await_all(session: Session) -> None:
    """Wait until no rank is busy: one that waits for a rank that was stopped has to be freed."""
    until_s = time.monotonic() + _DEADLINE_S
    while True:
        try:
            session.run("pass", view=RecordingView())
            return
        except StateError:
            if time.monotonic() > until_s:
                raise


def workers_of(session: Session) -> list[psutil.Process]:
    """Return the loaders' workers of all ranks."""
    ranks = [psutil.Process(rank.pid) for rank in session.status().ranks]
    children = [child for rank in ranks for child in rank.children(recursive=True)]
    return [child for child in children if _name(child) == "pt_data_worker"]


def await_no(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Wait until none of them runs; return those that do when the time is over."""
    until_s = time.monotonic() + _DEADLINE_S
    while (left := [one for one in processes if _runs(one)]) and time.monotonic() < until_s:
        threading.Event().wait(0.02)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def test_a_flood_is_stopped(session: Session) -> None:
    _, told = stop(session, "print('go', flush=True)\nwhile True: print('x' * 100)")
    assert "KeyboardInterrupt" in told


def test_a_flood_does_not_hide_an_error(session: Session) -> None:
    with pytest.raises(CellError, match="boom"):
        session.run(
            "if rank == 1: raise ValueError('boom')\nfor i in range(200_000): print('x' * 50)",
            view=RecordingView(),
        )


@pytest.mark.parametrize(
    "end",
    ["os._exit(9)", "os.kill(os.getpid(), 9)", "ctypes.string_at(0)", "os.abort()"],
)
@pytest.mark.parametrize("flush", [False, True])
def test_the_last_that_a_rank_prints_is_not_lost(end: str, flush: bool) -> None:
    with Session(nproc=2, seed=0) as session, pytest.raises(CellError):
        session.run(
            "import ctypes, os, sys, time\nif rank == 0:\n"
            f"    for i in range(1000): print('line', i, flush={flush} and i > 990)\n"
            f"    print('an error, schön', file=sys.stderr)\n    {end}\ntime.sleep(100)",
            view=(view := RecordingView()),
            output="all",
        )
    assert [f"[rank 0] line {i}" for i in range(1000)] == view.stdout.splitlines()
    assert "an error, schön" in view.stderr


def test_the_import_of_a_library_is_ended_first(session: Session, tmp_path: Path) -> None:
    """Cut off in the middle, it would leave a module that can never be used again."""
    library = tmp_path / "some-packages"
    library.mkdir()
    library.joinpath("slowlib.py").write_text(
        "import time\nprint('go', flush=True)\nfor _ in range(20): time.sleep(0.05)\nwhole = 7\n"
    )
    view, _ = stop(
        session,
        f"import sys, time\nsys.path.append({str(library)!r})\nimport slowlib\n"
        "time.sleep(100)\nprint('went on')",
    )
    assert "went on" not in view.stdout
    after = RecordingView()
    session.run("import slowlib\nprint(slowlib.whole)", view=after)
    assert after.stdout == "7\n"
