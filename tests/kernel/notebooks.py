"""Processes that hold a session as a notebook's kernel does, to be ended in every way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.leaks import children

_DEADLINE_S = 90.0
_POLL_S = 0.02

# What a user's code leaves running, in the ranks' own session and in one of its own.
START_CHILDREN = """
import subprocess, sys
code = "import time; time.sleep(600)"
children = [subprocess.Popen([sys.executable, "-c", code], start_new_session=own)
            for own in (False, True)]
"""
_SCRIPT = """
import json, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job may ignore it,
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and what nohup runs ignores this
from ddp_magic import Session

class Told:
    def __getattr__(self, name):
        return lambda *args: None
    def progress(self, text):
        print(json.dumps({"progress": text}), flush=True)

session = Session(nproc=2, seed=0)
%s
print(json.dumps({"folder": session.folder}), flush=True)
exec(sys.stdin.read())
"""


class Holder:
    """A process with a session of two ranks; everything that it has started is known.

    Parameters
    ----------
    begin
        Code that starts the session.
    """

    def __init__(self, begin: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT % begin],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def folder(self) -> Path:
        """Return the session's folder, when the ranks run."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read() if self.process.stderr else ""
        told: dict[str, Any] = json.loads(line)
        return Path(told["folder"])

    def started(self) -> dict[str, list[psutil.Process]]:
        """Return all that runs below the process, by name."""
        found: dict[str, list[psutil.Process]] = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            found.setdefault(process.name(), []).append(process)
        return found

    def go(self, code: str = "") -> None:
        """Have the process run code and then end."""
        assert self.process.stdin is not None
        self.process.stdin.write(code)
        self.process.stdin.close()


@contextmanager
def holding(begin: str) -> Iterator[Holder]:
    """Hold a session; whatever happens, its holder has ended afterwards."""
    holder = Holder(begin)
    try:
        yield holder
    finally:
        holder.process.kill()
        holder.process.wait()
        for pipe in (holder.process.stdin, holder.process.stdout, holder.process.stderr):
            assert pipe is not None
            pipe.close()


def await_end(processes: list[psutil.Process], folder: Path, deadline_s: float = 5.0) -> list[str]:
    """Wait until nothing is left; return what is when the time is over."""
    until_s = time.monotonic() + deadline_s
    while (left := _left(processes, folder)) and time.monotonic() < until_s:
        threading.Event().wait(_POLL_S)
    return left


def named(name: str) -> psutil.Process:
    """Return this process's one descendant of that name."""
    (process,) = (p for p in children() if p.name() == name)
    return process


def _left(processes: list[psutil.Process], folder: Path) -> list[str]:
    left = [f"{one.pid} {_name(one)}" for one in processes if _lives(one)]
    return left + ([str(folder)] if os.path.exists(folder) else [])


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return "ended"
