"""The guard sees what it is there to see."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from tests.leaks import LeakGuard

_ORPHAN = """
import subprocess, sys
sleep = [sys.executable, "-c", "input()"]
print(subprocess.Popen(sleep, stdin=sys.stdin, stdout=subprocess.DEVNULL).pid)
"""


def wait_for_input() -> None:
    input()


def test_nothing_is_nothing(leak_guard: LeakGuard) -> None:
    assert leak_guard.leaks(leak_guard.snapshot()) == []


def test_a_process_is_seen(leak_guard: LeakGuard) -> None:
    before = leak_guard.snapshot()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert any(f"process {child.pid} " in leak for leak in leak_guard.leaks(before))
        child.communicate(b"\n")
    assert leak_guard.leaks(before) == []


def test_a_process_whose_parent_ended_is_seen(leak_guard: LeakGuard) -> None:
    before = leak_guard.snapshot()
    reading, writing = os.pipe()
    command = [sys.executable, "-c", _ORPHAN]
    pid = int(subprocess.run(command, stdin=reading, stdout=subprocess.PIPE, check=True).stdout)
    os.close(reading)
    orphan = psutil.Process(pid)
    assert any(f"process {pid} " in leak for leak in leak_guard.leaks(before))
    os.close(writing)
    psutil.wait_procs([orphan], timeout=10)


def test_what_an_older_process_starts_is_its_own(leak_guard: LeakGuard) -> None:
    code = "import subprocess, sys; input(); subprocess.run([sys.executable, '-c', 'input()'])"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as child:
        before = leak_guard.snapshot()
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        older = psutil.Process(child.pid)
        while not older.children():
            threading.Event().wait(0.01)
        assert leak_guard.leaks(before) == []
        child.stdin.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_fork_server_is_allowed_but_not_what_it_forks(leak_guard: LeakGuard) -> None:
    context = multiprocessing.get_context("forkserver")
    before = leak_guard.snapshot()
    ours, theirs = context.Pipe()
    child = context.Process(target=theirs.recv)
    child.start()
    assert [leak for leak in leak_guard.leaks(before) if f"process {child.pid} " in leak]
    ours.send(None)
    child.join()
    ours.close()
    theirs.close()
    assert leak_guard.leaks(before) == []


def test_a_thread_is_seen(leak_guard: LeakGuard) -> None:
    before = leak_guard.snapshot()
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="a-thread", daemon=True)
    thread.start()
    assert leak_guard.leaks(before) == ["thread a-thread"]
    go.set()
    thread.join()


def test_a_port_is_seen(leak_guard: LeakGuard) -> None:
    before = leak_guard.snapshot()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert leak_guard.leaks(before) == [f"listening port {server.getsockname()[1]}"]


def test_a_folder_is_seen(leak_guard: LeakGuard) -> None:
    before = leak_guard.snapshot()
    folder = tempfile.mkdtemp(prefix="ddp_magic-")
    assert leak_guard.leaks(before) == [f"file {folder}"]
    os.rmdir(folder)


def test_a_changed_environment_is_seen(
    leak_guard: LeakGuard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("A", "1")
    before = leak_guard.snapshot()
    monkeypatch.setenv("A", "2")
    monkeypatch.setenv("B", "2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    leaks = leak_guard.leaks(before)
    assert leaks[:3] == [
        "environment variable A",
        "environment variable B",
        f"working directory {tmp_path}",
    ]
    assert leaks[3].startswith("sys.path, now ")


def test_what_does_not_end_fails_and_is_put_back(
    leak_guard: LeakGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.leaks._GRACE_S", 0.0)
    leak = "environment variable LEAKED"
    with pytest.raises(pytest.fail.Exception, match=leak), leak_guard.check():
        os.environ["LEAKED"] = "1"
    assert "LEAKED" not in os.environ
