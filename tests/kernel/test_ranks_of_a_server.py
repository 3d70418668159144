"""What ranks of one server can come to; each test finds ranks that have just been started."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ddp_magic import CellError, Session, StateError
from ddp_magic.testing import RecordingView
from tests.kernel.notebooks import START_CHILDREN, named


@pytest.fixture(scope="module")
def server() -> Iterator[Session]:
    """Return a session that has started."""
    session = Session(nproc=2, seed=0)
    session.start()
    yield session
    session.stop()


@pytest.fixture
def ranks(server: Session) -> Session:
    """Return the session with new ranks."""
    server.restart()
    return server


def test_one_seed_for_all_ranks(ranks: Session) -> None:
    ranks.run("import torch\ndrawn = torch.rand(3)", view=RecordingView())
    first, second = ranks.pull("drawn")
    assert first.tolist() == second.tolist()


def test_start_twice_is_refused_with_the_story(ranks: Session) -> None:
    with pytest.raises(StateError, match="Cannot start: the ranks are ready"):
        ranks.start()


def test_a_killed_rank_ends_the_cell_and_the_others_live(ranks: Session) -> None:
    ranks.run("kept = rank", view=RecordingView())
    victim = ranks.status().ranks[1].pid
    with pytest.raises(CellError, match="rank 1 was killed by SIGKILL"):
        ranks.run(
            f"import os, signal\nif rank == 1: os.kill({victim}, signal.SIGKILL)",
            view=RecordingView(),
        )
    assert ranks.status().ranks[1].state.startswith("was killed by SIGKILL")
    assert ranks.pull("kept", ranks=0) == 0
    with pytest.raises(StateError, match="%ddp restart"):
        ranks.run("pass", view=RecordingView())
    ranks.run("kept += 1", view=RecordingView(), ranks=(0,))
    assert ranks.pull("kept", ranks=0) == 1
    ranks.restart()
    ranks.run("pass", view=RecordingView())


def test_a_rank_that_is_suspended_for_a_while_is_not_dead(ranks: Session) -> None:
    ranks.run("kept = rank", view=RecordingView())
    rank = psutil.Process(ranks.status().ranks[1].pid)
    rank.suspend()
    threading.Timer(2.5, rank.resume).start()
    ranks.run("pass", view=RecordingView())
    assert ranks.pull("kept") == [0, 1]


def test_the_others_are_interrupted_when_a_rank_dies(ranks: Session) -> None:
    with pytest.raises(CellError, match="rank 0 was killed by SIGKILL"):
        ranks.run(
            "import os, signal, time\nif rank == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
            "while True: time.sleep(0.01)",
            view=RecordingView(),
        )


def test_a_dead_rank_is_told_when_a_start_is_asked_for(ranks: Session) -> None:
    psutil.Process(ranks.status().ranks[1].pid).kill()
    with pytest.raises(CellError, match="rank 1 was killed"):
        ranks.run("import time\nwhile True: time.sleep(0.01)", view=RecordingView())
    with pytest.raises(StateError, match="Dead: rank 1 was killed by SIGKILL"):
        ranks.check_same()


def test_restarts_leave_no_file_open_and_no_thread(ranks: Session) -> None:
    ranks.restart()
    me, files = psutil.Process(), set(Path(ranks.folder).iterdir())
    before = me.num_fds(), me.num_threads(), len(files)
    for _ in range(5):
        ranks.restart()
    after = me.num_fds(), me.num_threads(), len(set(Path(ranks.folder).iterdir()))
    assert after == before


def test_late_output_of_two_kinds_is_shown_whole(ranks: Session) -> None:
    """What threads print and what compiled code writes come on different threads here."""
    view = RecordingView()
    ranks.run(
        "import threading, os, time\n"
        "def print_late():\n"
        "    for i in range(1000):\n"
        "        print(f'p{i}')\n        os.write(1, b'c%d\\n' % i)\n        time.sleep(0.001)\n"
        "    os.write(1, b'the end\\n')\n"
        "threading.Thread(target=print_late).start()",
        view=view,
        ranks=(0,),
    )
    assert view.await_stdout("the end")
    assert view.await_stdout("p999")
    for letter in "pc":
        numbers = [int(text) for text in re.findall(rf"{letter}(\d+)", view.stdout)]
        assert numbers == list(range(1000))


def test_what_cannot_be_shown_costs_nothing_else(
    ranks: Session, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(RecordingView):
        def text(self, stream: str, text: str) -> None:
            raise UnicodeEncodeError("ascii", text, 0, 1, "not in range")

    ranks.run(
        "import subprocess, sys\ncode = 'import time; time.sleep(0.3); print(1)'\n"
        "child = subprocess.Popen([sys.executable, '-c', code])",
        view=Failing(),
    )
    until_s = time.monotonic() + 20
    while "could not be shown" not in caplog.text and time.monotonic() < until_s:
        threading.Event().wait(0.02)
    assert "could not be shown" in caplog.text
    ranks.run("child.wait()", view=RecordingView())
    ranks.restart()


def test_restart_renews_the_ranks_and_all_that_they_started(ranks: Session) -> None:
    ranks.run(START_CHILDREN, view=RecordingView())
    server = named("ddp-forkserver")
    kept = {server.pid, named("ddp-controller").pid}
    others = [one for one in server.children(recursive=True) if one.pid not in kept]
    assert len(others) == 6
    ranks.restart()
    assert not [one for one in others if one.is_running()]
    assert {named("ddp-forkserver").pid, named("ddp-controller").pid} == kept


@pytest.mark.parametrize("state", ["stopped", "stuck", "dead", "ignoring"])
def test_restart_ends_ranks_in_any_state(ranks: Session, state: str) -> None:
    ranks.run("import signal, os\nx = 1", view=RecordingView())
    rank = psutil.Process(ranks.status().ranks[1].pid)
    if state == "stopped":
        rank.suspend()
    elif state == "dead":
        rank.kill()
    elif state == "ignoring":
        ranks.run("signal.signal(signal.SIGTERM, signal.SIG_IGN)", view=RecordingView())
    else:
        ranks.run("while rank: pass", view=RecordingView(), background=True)
    ranks.restart()
    assert not rank.is_running()
    ranks.run("y = rank", view=RecordingView())
    assert ranks.pull("y") == [0, 1]


def test_users_exit_handlers_run_when_ranks_are_stopped(ranks: Session, tmp_path: Path) -> None:
    ranks.run(
        f"import atexit, pathlib\natexit.register(pathlib.Path('{tmp_path}', str(rank)).touch)",
        view=RecordingView(),
    )
    ranks.restart()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0", "1"]
