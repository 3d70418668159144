"""Ends a session's processes when the one that started them has gone, however it went.

Runs as a process of its own, ``python -m ddp_magic.kernel.reaper FOLDER``, and reads lines of
``PID CREATED_S`` until its standard input ends: with the session, or with the session's process.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from ddp_magic.kernel.processes import end_processes

_EXIT_TIMEOUT_S = 10


class Reaper:
    """The session's end of the reaper's pipe.

    Parameters
    ----------
    folder
        What is removed when all is over.
    """

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", __name__, str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def watch(self, pids: Iterable[int]) -> None:
        """Have these processes, and theirs, ended when this process has gone."""
        assert self._process.stdin is not None
        for pid in pids:
            print(pid, psutil.Process(pid).create_time(), file=self._process.stdin, flush=True)

    def close(self) -> None:
        """Have it end what is left, and wait until it has."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_EXIT_TIMEOUT_S)


def main() -> None:
    """Wait for the end of the input, then end the processes and remove the folder."""
    seen = [line.split() for line in sys.stdin]
    end_processes((int(pid) for pid, created_s in seen if _is(int(pid), float(created_s))), 0)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


def _is(pid: int, created_s: float) -> bool:
    """Tell whether the process is still the one that was named, not another with its number."""
    try:
        return psutil.Process(pid).create_time() == created_s
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    main()
