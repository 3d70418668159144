"""Starting, stopping and losing ranks."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ddp_magic import CellError, Session, SetupError, StartError, StateError, UsageError
from ddp_magic.core.lifecycle import State
from ddp_magic.testing import RecordingView
from tests.leaks import children


@pytest.fixture
def cold() -> Iterator[Session]:
    """Return a session that has not started; whatever it starts is stopped."""
    session = Session(nproc=2)
    yield session
    session.stop()


def test_nothing_is_left_after_stop(cold: Session) -> None:
    cold.start()
    folder = Path(cold.folder)
    pids = [rank.pid for rank in cold.status().ranks]
    assert folder.stat().st_mode & 0o777 == 0o700
    cold.stop()
    assert not folder.exists()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    cold.stop()
    with pytest.raises(StateError):
        cold.pull("x")


def test_run_starts_the_ranks_and_restart_renews_them(cold: Session) -> None:
    cold.run("x = 1", view=RecordingView())
    before = {rank.pid for rank in cold.status().ranks}
    cold.restart(nproc=3)
    assert cold.world_size == 3
    assert before.isdisjoint(rank.pid for rank in cold.status().ranks)
    with pytest.raises(UsageError, match="no variable 'x'"):
        cold.pull("x")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"nproc": 0}, UsageError, "-n/--nproc 0"),
        ({"nproc": 9_999_999}, SetupError, "GiB of memory"),
        ({"backend": "mpi"}, UsageError, "--backend mpi"),
        ({"backend": "nccl"}, SetupError, "GPU"),
    ],
)
def test_what_cannot_be_had_starts_nothing(
    options: dict[str, object], error: type[Exception], words: str
) -> None:
    session = Session(**options)  # type: ignore[arg-type]
    with pytest.raises(error, match=words):
        session.start()
    assert session._life.state is State.FAILED
    assert not session.started


def test_a_missing_torch_is_named(cold: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SetupError, match="torch is not installed"):
        cold.start()


def test_a_rank_that_ends_at_its_start_is_told(
    cold: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('this torch is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(StartError, match="this torch is broken"):
        cold.start()
    monkeypatch.delenv("PYTHONPATH")
    cold.start()
    assert cold.world_size == 2


def test_the_context_manager_stops_the_ranks() -> None:
    with Session(nproc=1) as session:
        (rank,) = session.status().ranks
        process = psutil.Process(rank.pid)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_nothing_is_left_when_the_sessions_process_is_killed() -> None:
    script = (
        "import os, signal\nfrom ddp_magic import Session\n"
        "session = Session(nproc=1)\nsession.start()\n"
        "print(session.folder)\nprint(session.status().ranks[0].pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    folder, pid = ended.stdout.split()
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s and (psutil.pid_exists(int(pid)) or Path(folder).exists()):
        threading.Event().wait(0.02)
    assert not psutil.pid_exists(int(pid))
    assert not Path(folder).exists()


def test_a_slow_start_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slowmodule.py").write_text("import time\ntime.sleep(4)")
    monkeypatch.syspath_prepend(tmp_path)
    session, view = Session(nproc=2, preload=["slowmodule"]), RecordingView()
    try:
        session.start(view)
        assert view.progresses[0] == "ddp: starting: importing torch and slowmodule ..."
        assert view.notices[-1].startswith("ddp: 2 ranks on CPU, gloo")
    finally:
        session.stop()


def test_what_a_start_was_given_does_not_stick(cold: Session) -> None:
    with pytest.raises(SetupError, match="no GPU"):
        cold.start(backend="nccl")
    with pytest.raises(SetupError, match="-n 100000"):
        cold.start(nproc=100_000)
    cold.start(nproc=1)
    assert cold.world_size == 1
    cold.restart()
    assert cold.world_size == 1
    cold.stop()
    cold.start()
    assert cold.world_size == 2


def test_a_restart_that_cannot_be_had_loses_nothing(cold: Session) -> None:
    cold.run("kept = rank", view=RecordingView())
    with pytest.raises(SetupError, match="-n 100000"):
        cold.restart(nproc=100_000)
    with pytest.raises(SetupError, match="no GPU"):
        cold.restart(backend="nccl")
    cold.preload = ["nosuchmodule"]
    with pytest.raises(SetupError, match="nosuchmodule"):
        cold.restart()
    assert cold.pull("kept") == [0, 1]


def test_a_death_ends_the_cell_although_its_connections_stay_open(cold: Session) -> None:
    """A process that the dead rank has started holds them."""
    cold.start()
    with pytest.raises(CellError, match="rank 1 exited with code 9") as caught:
        cold.run(
            "import os, time\nif rank == 1:\n    if os.fork() == 0: time.sleep(600)\n"
            "    time.sleep(0.5)\n    os._exit(9)\nddp.barrier()",
            view=RecordingView(),
        )
    told = caught.value.story.lines()[-1]  # whichever was noticed first
    assert told.startswith(("rank 0 was interrupted", "rank 0 waited in barrier"))


@pytest.mark.parametrize("kind", [{"nproc": "2"}, {"seed": 1.5}])
def test_wrong_kinds_are_refused(kind: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="not a whole number"):
        Session(**kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("delay_s", [0.0, 0.5, 2.0])
def test_a_stop_on_another_thread_ends_a_start(cold: Session, delay_s: float) -> None:
    stopper = threading.Timer(delay_s, cold.stop)
    stopper.start()
    try:
        cold.start()
    except (StartError, StateError):
        pass
    finally:
        stopper.join()
    cold.stop()
    assert children() == []


@pytest.mark.parametrize("names", [["a b"], [""], [1], [None], ["..x"]])
def test_what_names_no_module_is_refused(names: list[object]) -> None:
    with pytest.raises(UsageError, match="is not the name of a module"):
        Session(preload=names)  # type: ignore[arg-type]


def test_one_module_may_be_named_by_itself() -> None:
    assert Session(preload="wave").preload == ("wave",)
