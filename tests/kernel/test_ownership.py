"""However a session ends, nothing of it is left: no process, no file, not what users started."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ddp_magic import CellError, Interrupted, Session, StartError, StateError
from ddp_magic.kernel.cluster import can_fork
from ddp_magic.kernel.forks import ForkServer
from ddp_magic.testing import RecordingView
from tests.kernel.notebooks import START_CHILDREN, Holder, await_end, holding, named
from tests.leaks import children

_START = f"session.start(); session.run({START_CHILDREN!r})"
_DEADLINE_S = 60.0


@pytest.fixture
def holder() -> Iterator[Holder]:
    with holding(_START) as holder:
        yield holder


def flat(found: dict[str, list[psutil.Process]]) -> list[psutil.Process]:
    """Return the processes of all names."""
    return [process for some in found.values() for process in some]


def test_all_that_a_session_starts_is_known(holder: Holder) -> None:
    holder.folder()
    found = {name: len(some) for name, some in holder.started().items()}
    users = sum(found.pop(name) for name in list(found) if not name.startswith("ddp-"))
    assert users == 4
    assert found == {
        "ddp-guardian": 1,
        "ddp-forkserver": 1,
        "ddp-controller": 1,
        "ddp-rank-0": 1,
        "ddp-rank-1": 1,
    }


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(lambda holder: holder.go("session.stop()"), id="stop"),
        pytest.param(lambda holder: holder.go(), id="exit"),
        pytest.param(lambda holder: holder.go("sys.exit(3)"), id="exit with an error"),
        pytest.param(lambda holder: holder.go("os._exit(0)"), id="os._exit"),
        pytest.param(lambda holder: holder.go("import ctypes; ctypes.string_at(0)"), id="crash"),
        pytest.param(lambda holder: holder.process.terminate(), id="SIGTERM"),
        pytest.param(lambda holder: holder.process.kill(), id="SIGKILL"),
        pytest.param(lambda holder: holder.process.send_signal(signal.SIGHUP), id="SIGHUP"),
    ],
)
def test_nothing_is_left_when_the_notebook_ends(
    holder: Holder, how: Callable[[Holder], None]
) -> None:
    folder = holder.folder()
    processes = flat(holder.started())
    how(holder)
    assert await_end(processes, folder) == []


@pytest.mark.parametrize("name", ["ddp-controller", "ddp-forkserver", "ddp-guardian"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_what_all_ranks_need_is_killed(
    holder: Holder, name: str, number: signal.Signals
) -> None:
    folder = holder.folder()
    found = holder.started()
    (process,) = found[name]
    process.send_signal(number)
    assert await_end(flat(found), folder) == []
    assert holder.process.poll() is None


def test_a_guardian_that_is_asked_to_end_as_it_does_finishes(holder: Holder) -> None:
    folder = holder.folder()
    found = holder.started()
    (guardian,), (server,) = found["ddp-guardian"], found["ddp-forkserver"]
    server.kill()
    with contextlib.suppress(psutil.NoSuchProcess):
        while guardian.status() != psutil.STATUS_ZOMBIE:
            guardian.terminate()
    assert await_end(flat(found), folder) == []


@pytest.mark.parametrize("stops", [False, True])
def test_a_process_that_the_notebook_has_forked_keeps_nothing_alive(
    holder: Holder, stops: bool
) -> None:
    folder = holder.folder()
    processes = flat(holder.started())
    holder.go(
        "import time\npid = os.fork()\nif pid == 0: os.close(1); os.close(2); time.sleep(600)\n"
        f"print(pid, flush=True)\nif {stops}: session.stop()\ntime.sleep(600)"
    )
    assert holder.process.stdout is not None
    forked = psutil.Process(int(holder.process.stdout.readline()))
    try:
        if not stops:
            holder.process.kill()
        assert await_end(processes, folder, 3) == []
        assert forked.is_running()
    finally:
        forked.kill()


def test_a_process_forked_from_the_notebook_ends_nothing_as_it_exits(holder: Holder) -> None:
    holder.folder()
    holder.go(
        "pid = os.fork()\nif pid == 0: sys.exit(0)\nos.waitpid(pid, 0)\n"
        "session.restart()\nsession.run('print(1)', output='rank0')"
    )
    assert holder.process.stdout is not None
    assert holder.process.stdout.readline() == "1\n"


def test_a_copy_of_the_session_in_a_forked_process_stops_nothing(holder: Holder) -> None:
    holder.folder()
    holder.go(
        "pid = os.fork()\nif pid == 0:\n    session.stop()\n"
        "    for act in (session.restart, lambda: session.run('1'), lambda: session.pull('x')):\n"
        "        try: act()\n        except Exception as e: print(type(e).__name__, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\nsession.run('print(1)', output='rank0')"
    )
    assert holder.process.stdout is not None
    said = [holder.process.stdout.readline() for _ in range(4)]
    assert said == ["StateError\n"] * 3 + ["1\n"]


def test_a_notebook_that_ignores_its_childrens_ends_leaves_nothing() -> None:
    begin = "signal.signal(signal.SIGCHLD, signal.SIG_IGN); " + _START
    with holding(begin) as holder:
        folder = holder.folder()
        processes = flat(holder.started())
        holder.process.kill()
        assert await_end(processes, folder) == []


def test_a_notebook_that_is_killed_in_a_cell_leaves_nothing(holder: Holder) -> None:
    folder = holder.folder()
    processes = flat(holder.started())
    holder.go("session.run('print(1)\\nwhile True: pass')")
    assert holder.process.stdout is not None
    assert holder.process.stdout.readline() == "1\n"
    holder.process.kill()
    assert await_end(processes, folder) == []


@pytest.fixture
def long_start(tmp_path: Path) -> str:
    """Return code after which a start does not end before the test does."""
    (tmp_path / "takeslong.py").write_text("import time; time.sleep(600)")
    return f"sys.path.insert(0, {str(tmp_path)!r}); session.preload = ['takeslong']"


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGINT, signal.SIGINT]])
def test_a_start_that_is_interrupted_leaves_nothing(
    signals: list[signal.Signals], long_start: str
) -> None:
    begin = f"""{long_start}
print(json.dumps({{"folder": ""}}), flush=True)
try:
    session.start()
except KeyboardInterrupt:
    print(json.dumps({{"folder": "interrupted"}}), flush=True)
"""
    with holding(begin) as holder:
        holder.folder()
        folder = _folder_of(holder)
        processes = flat(holder.started())
        for number in signals:
            holder.process.send_signal(number)
        assert holder.folder() == Path("interrupted")
        assert await_end(processes, folder) == []
        assert not holder.started()


def test_a_server_that_is_just_made_is_not_lost(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(ForkServer):
        def __init__(self, preload: tuple[str, ...]) -> None:
            super().__init__(preload)
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr("ddp_magic.kernel.forked.ForkServer", Interrupting)
        with pytest.raises(Interrupted, match="nothing of it is left"):
            session.start()
    assert children() == []


def test_a_start_whose_notebook_is_killed_leaves_nothing(long_start: str) -> None:
    begin = f'{long_start}\nprint(json.dumps({{"folder": ""}}), flush=True); session.start()'
    with holding(begin) as holder:
        holder.folder()
        folder = _folder_of(holder)
        processes = flat(holder.started())
        holder.process.kill()
        assert await_end(processes, folder) == []


def _folder_of(holder: Holder) -> Path:
    """Return the folder of a session that is starting, as soon as there is one."""
    until_s = time.monotonic() + _DEADLINE_S
    while time.monotonic() < until_s:
        for process in holder.started().get("ddp-forkserver", []):
            sockets = process.parent().children(recursive=True)
            for one in sockets:
                for connection in one.net_connections("unix"):
                    if "/ddp_magic-" in connection.laddr:
                        return Path(connection.laddr).parent
        threading.Event().wait(0.01)
    raise AssertionError("no session's folder came")


def test_a_warm_start_that_nobody_uses_leaves_nothing() -> None:
    with holding("session.warm()") as holder:
        folder = holder.folder()
        processes = flat(holder.started())
        assert processes
        holder.process.kill()
        assert await_end(processes, folder) == []


@pytest.fixture
def session() -> Iterator[Session]:
    session = Session(nproc=2, seed=0)
    yield session
    session.stop()


@pytest.mark.parametrize("name", ["ddp-controller", "ddp-forkserver"])
def test_a_cell_ends_when_what_it_needs_has_gone(session: Session, name: str) -> None:
    session.start()
    process = named(name)

    class Killing(RecordingView):
        def text(self, stream: str, text: str) -> None:
            process.kill()

    what = "the " + {"ddp-controller": "controller", "ddp-forkserver": "fork server"}[name]
    with pytest.raises(CellError, match=f"ranks 0-1 were ended: {what} was killed by SIGKILL"):
        session.run("print(1, flush=True)\nwhile True: pass", view=Killing())
    with pytest.raises(StateError, match=f"gone: {what} was killed by SIGKILL"):
        session.run("pass", view=RecordingView())
    session.restart()
    session.run("x = 1", view=RecordingView())
    assert session.pull("x") == [1, 1]


def test_a_loss_between_cells_is_told_by_the_next(session: Session) -> None:
    session.start()
    folder = Path(session.folder)
    processes = children()
    named("ddp-controller").kill()
    assert await_end(processes, folder) == []
    with pytest.raises(StateError, match="the controller was killed by SIGKILL"):
        session.run("pass", view=RecordingView())
    assert "have been lost" in repr(session)


@pytest.mark.parametrize("names", [["ddp-forkserver"], ["ddp-guardian", "ddp-forkserver"]])
def test_stop_ends_what_is_suspended(session: Session, names: list[str]) -> None:
    session.start()
    folder, processes = Path(session.folder), children()
    for name in names:
        named(name).suspend()
    session.stop()
    assert await_end(processes, folder) == []


def test_other_processes_are_left_alone(session: Session) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)  # ddp-rank-0 ddp_magic"]
    with subprocess.Popen(command) as other:
        session.start()
        session.restart()
        session.stop()
        assert other.poll() is None
        other.kill()


def test_where_nothing_can_be_forked_the_stock_launcher_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("os.fork")
    assert not can_fork()
    view = RecordingView()
    session = Session(nproc=2)
    monkeypatch.undo()
    try:
        session.start(view)
        assert "this system cannot fork" in view.notices[0]
        folder = Path(session.folder)
        session.run("x = rank", view=view)
        assert session.pull("x") == [0, 1]
        processes = children()
        session.restart()
        assert await_end(processes, folder, 10) == []
    finally:
        session.stop()


def test_a_rank_that_ends_at_its_start_ends_the_start(session: Session) -> None:
    def kill_rank() -> None:
        until_s = time.monotonic() + _DEADLINE_S
        while time.monotonic() < until_s:
            for process in children():
                if process.name() == "ddp-rank-1":
                    process.kill()
                    return

    killer = threading.Thread(target=kill_rank)
    killer.start()
    try:
        with pytest.raises(StartError, match="Rank 1 was killed by SIGKILL"):
            session.start()
    finally:
        killer.join()
    assert children() == []
    session.start()
