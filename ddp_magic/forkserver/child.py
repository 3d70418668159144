"""A process that the fork server has forked: how it begins, what it writes, how it ended."""

from __future__ import annotations

import atexit
import codecs
import importlib
import json
import mmap
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ddp_magic.core.processend import ProcessEnd
from ddp_magic.core.unsent import Tail, tails
from ddp_magic.forkserver.system import die_with_parent, set_name

Ready = Callable[[dict[str, Any]], None]

_READ_BYTES = 65536
_PIPE_BYTES = 1048576  # the most that a pipe may hold
_TAIL_BYTES = 16384
_PENDING_CHARS = 500_000  # of one child, not yet sent to the notebook


class Child:
    """The fork server's knowledge of one process that it forked.

    Attributes
    ----------
    key
        By which the notebook calls it.
    is_rank
        Whether it may train.
    files
        The file descriptors to be read: what it prints, and what it says of itself.
    """

    def __init__(
        self,
        key: int,
        pid: int,
        outputs: dict[int, str],
        status_fd: int,
        tails: Mapping[str, Tail],
        *,
        is_rank: bool,
    ) -> None:
        self.key = key
        self.pid = pid
        self.is_rank = is_rank
        self._streams = outputs
        self._status_fd = status_fd
        self._tails = tails
        self._status = b""
        self._tail = bytearray()
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {fd: make(errors="replace") for fd in outputs}
        self._pending: list[tuple[str, str]] = []
        self._pending_chars = self._dropped_chars = 0

    @property
    def files(self) -> tuple[int, ...]:
        return (*self._streams, self._status_fd)

    def read(self, fd: int) -> bytes | None:
        """Read and keep what is there: None if nothing is now, ``b""`` if nothing will be."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return None
        if fd == self._status_fd:
            self._status += data
        else:
            self._keep(fd, data)
        return data

    def take_status(self) -> dict[str, Any] | None:
        """Return what the process has said of itself, once."""
        if not self._status.endswith(b"\n"):
            return None
        status, self._status = self._status, b""
        info: dict[str, Any] = json.loads(status)
        return info

    @property
    def has_output(self) -> bool:
        """Whether `take_output` would return something."""
        return bool(self._pending)

    def take_output(self) -> list[tuple[str, str]]:
        """Return what was printed since the last call: pairs of stream and text."""
        taken, self._pending = self._pending, []
        if self._dropped_chars:
            taken.append(("stderr", f"\n[{self._dropped_chars:,} characters not shown]\n"))
        self._pending_chars = self._dropped_chars = 0
        return taken

    def drain(self) -> None:
        """Read all that has been printed so far.

        Not until its end: what the process started may print for ever. More than a pipe holds
        was printed meanwhile.
        """
        for fd in self._streams:
            for _ in range(_PIPE_BYTES // _READ_BYTES):
                if not self.read(fd):
                    break

    def end(self, status: int) -> ProcessEnd:
        """Return how the process ended, given what ``waitpid`` said of it."""
        self.drain()
        signalled = os.WIFSIGNALED(status)
        return ProcessEnd(
            exit_code=None if signalled else os.WEXITSTATUS(status),
            signal_name=_signal_name(os.WTERMSIG(status)) if signalled else "",
            core_dumped=signalled and os.WCOREDUMP(status),
            tail=self._tail.decode(errors="replace").strip(),
            unsent={name: tail.to_wire() for name, tail in self._tails.items()},
        )

    def _keep(self, fd: int, data: bytes) -> None:
        self._tail += data
        del self._tail[:-_TAIL_BYTES]
        text = self._decoders[fd].decode(data, final=not data)
        if self._pending_chars + len(text) > _PENDING_CHARS:
            self._dropped_chars += len(text)
        elif text:
            self._pending_chars += len(text)
            self._pending.append((self._streams[fd], text))


def fork(request: dict[str, Any], close: Iterable[int]) -> Child:
    """Fork a process that calls a function and ends.

    Parameters
    ----------
    request
        ``target``: the function, as ``"package.module:function"``; it is called with ``config``
        and a function that tells the notebook that it is ready. Around it: ``key``, ``name``,
        ``environment``, ``folder`` (the working directory), ``path`` (where modules are found),
        ``is_rank``, and ``tail_bytes``: the size of the memory for the last that it prints (see
        `core.unsent`), which ``config`` then has as ``tails``; 0: none.
    close
        This process's files that the other must not hold.

    Raises
    ------
    OSError
        The system has no memory, no process or no file left.
    """
    pipes: list[tuple[int, int]] = []
    shared: dict[str, Tail] = {}
    try:
        if request["tail_bytes"]:
            shared = tails(memoryview(mmap.mmap(-1, request["tail_bytes"])))
            request["config"]["tails"] = shared
        pipes += [os.pipe() for _ in range(3)]
        parent, pid = os.getpid(), os.fork()
    except OSError:
        for pipe in pipes:
            for fd in pipe:
                os.close(fd)
        raise
    (out_r, out_w), (err_r, err_w), (status_r, status_w) = pipes
    if pid == 0:
        code = 1
        try:
            for fd in (*close, out_r, err_r, status_r):
                os.close(fd)
            code = _live(parent, request, (out_w, err_w), status_w)
        finally:
            os._exit(code)  # never back into the server's own code
    for fd in (out_w, err_w, status_w):
        os.close(fd)
    for fd in (out_r, err_r, status_r):
        os.set_blocking(fd, False)
    outputs = {out_r: "stdout", err_r: "stderr"}
    return Child(request["key"], pid, outputs, status_r, shared, is_rank=request["is_rank"])


def _live(parent: int, request: dict[str, Any], outputs: tuple[int, int], status_fd: int) -> int:
    """Be the new process; return its exit code."""
    try:
        os.setsid()
        die_with_parent(parent)
        _take_place(request, outputs)

        def ready(info: dict[str, Any]) -> None:
            os.write(status_fd, json.dumps(info).encode() + b"\n")
            os.close(status_fd)

        module, _, function = request["target"].partition(":")
        getattr(importlib.import_module(module), function)(request["config"], ready)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    # What the user's code registered; then no more, for threads may hold what finalizing needs.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _take_place(request: dict[str, Any], outputs: tuple[int, int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for fd, pipe in zip((1, 2), outputs, strict=True):
        os.dup2(pipe, fd)
        os.close(pipe)
    set_name(request["name"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[:] = request["path"]
    time.tzset()
    tempfile.tempdir = None  # found anew, as TMPDIR says now


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
