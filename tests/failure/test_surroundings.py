"""What happens around a session: its processes are killed or suspended, the disk fills up."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ddp_magic import CellError, Session, StartError, StateError
from ddp_magic.testing import RecordingView
from tests.kernel.notebooks import await_end, named
from tests.leaks import children

_WORDS = {
    "ddp-controller": "controller",
    "ddp-forkserver": "fork server",
    "ddp-guardian": "guardian",
}


@pytest.fixture
def session() -> Iterator[Session]:
    session = Session(nproc=2, seed=0)
    yield session
    session.stop()


@pytest.mark.parametrize("name", _WORDS)
def test_what_ended_is_named(session: Session, name: str) -> None:
    session.start()
    folder, processes = Path(session.folder), children()
    process = named(name)

    class Killing(RecordingView):
        def text(self, stream: str, text: str) -> None:
            process.kill()

    what = f"the {_WORDS[name]} was killed by SIGKILL"
    with pytest.raises(CellError, match=f"ranks 0-1 were ended: {what}"):
        session.run("print(1, flush=True)\nwhile True: pass", view=Killing())
    with pytest.raises(StateError, match=f"gone: {what}"):
        session.pull("x")
    assert await_end(processes, folder) == []
    session.restart()
    session.run("x = 1", view=RecordingView())


@pytest.mark.parametrize("name", _WORDS)
def test_what_ends_in_a_start_ends_it(session: Session, name: str) -> None:
    def kill() -> None:
        while not started.is_set():
            for process in children():
                if process.name() == name:
                    return process.kill()

    started = threading.Event()
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(StartError, match=rf"(?i){_WORDS[name]}.* by SIGKILL|has gone"):
            session.start()
    finally:
        started.set()
        killer.join()
    assert children() == []


@pytest.mark.parametrize("name", ["ddp-controller", "ddp-forkserver"])
def test_restart_replaces_what_is_suspended(session: Session, name: str) -> None:
    session.start()
    suspended = named(name)
    suspended.suspend()
    session.restart()
    assert not suspended.is_running()
    session.run("x = rank", view=RecordingView())
    assert session.pull("x") == [0, 1]


_SUSPENDED = """
import json, os, sys
from ddp_magic import Session
from ddp_magic.testing import RecordingView
class Told(RecordingView):
    def text(self, stream, text):
        super().text(stream, text)
        if not self.told and "line 100" in self.stdout:
            self.told = True
            print("go", flush=True)
    told = False
session, view = Session(nproc=2), Told()
session.start()
pids = [one.pid for one in session.status().ranks]
print(json.dumps(pids), flush=True)
session.run("import time\\nfor i in range(3000):\\n    print('line', i)\\n    time.sleep(0.0005)",
            view=view, output="all")
session.run("x = rank", view=view)
assert session.pull("x") == [0, 1]
for rank in range(2):
    shown = [line for line in view.stdout.splitlines() if line.startswith(f"[rank {rank}] ")]
    assert shown == [f"[rank {rank}] line {i}" for i in range(3000)], view.stdout
assert session.status().headline.startswith("the ranks are ready")
session.stop()
print("well", flush=True)
"""


@pytest.mark.parametrize("who", ["the notebook", "all", "the ranks"])
def test_who_was_suspended_goes_on(who: str) -> None:
    command = [sys.executable, "-c", _SUSPENDED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        pids = holder.stdout.readline()
        try:
            assert holder.stdout.readline() == "go\n"
            me = psutil.Process(holder.pid)
            ranks = [one for one in me.children(recursive=True) if str(one.pid) in pids]
            parts = {"the notebook": [me], "the ranks": ranks}
            suspended = parts.get(who, [me, *me.children(recursive=True)])
            for process in suspended:
                process.suspend()
            threading.Event().wait(4)  # longer than a beat of the hearts
            for process in reversed(suspended):
                process.resume()
            assert holder.stdout.readline() == "well\n"
        finally:
            holder.kill()


_FULL = """
import os, psutil
from ddp_magic import CellError, Session, StateError
from ddp_magic.testing import RecordingView
def run(code):
    session.run(code, view=RecordingView())
def fill():
    with open(full, "wb", 0) as file:
        try:
            while True: file.write(bytes(4096))
        except OSError: pass
def failure(act):
    try:
        for _ in range(300): act()
    except Exception as error: return error
full = os.environ["TMPDIR"] + "/full"
session = Session(nproc=2)
session.start()
run("kept = rank")
fill()
error = failure(lambda: run("pass"))
assert isinstance(error, CellError) and "No space left on device" in str(error), error
assert "Free some space there" in str(error), error
error = failure(lambda: run("pass"))
assert isinstance(error, StateError) and "No space left on device" in str(error), error
os.unlink(full)
run("kept += 1")
run("import torch\\nnet = torch.nn.Linear(2, 1)\\nnet(torch.rand(4, 2)).sum().backward()")
assert session.pull("kept") == [1, 2]
session.stop()
print("well")
"""


def test_a_disk_that_fills_up_and_is_emptied() -> None:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system does not allow `unshare -rm`")
    # A session's folder of a longer name would be elsewhere, for its sockets' sake.
    with tempfile.TemporaryDirectory(prefix="d") as folder:
        _run_on_a_small_disk(folder)


def _run_on_a_small_disk(folder: str) -> None:
    mount = f"mount -t tmpfs -o size=1M none {folder} && export TMPDIR={folder}"
    shell = ["unshare", "-rm", "bash", "-c", f'{mount} && exec "$0" "$@"']
    ended = subprocess.run(
        [*shell, sys.executable, "-c", _FULL], capture_output=True, text=True, check=False
    )
    assert ended.stdout == "well\n", ended.stderr


_RUN = "from ddp_magic import Session\nwith Session(nproc=2) as s: s.run('print(rank)')"


@pytest.mark.parametrize(
    "changes",
    [{"PYTHONWARNINGS": "error"}, {"HOME": None}, {"HOME": "/proc/nowhere"}, {"PWD": "/proc/self"}],
    ids=str,
)
def test_an_odd_environment_does_not_matter(changes: dict[str, str | None]) -> None:
    environment = {**os.environ, **changes}
    ended = subprocess.run(
        [sys.executable, "-W", "default", "-c", _RUN],
        env={name: value for name, value in environment.items() if value is not None},
        cwd=changes.get("PWD"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == "0\n[rank 1] 1\n", ended.stderr
