"""The fork server: imports torch once, then forks the processes of a session.

It talks to the notebook in lines of JSON over a socket.

======================  =============================================================
request                 does
======================  =============================================================
``fork``                forks a process that calls ``target(config, ready)``
``signal``              sends a signal to a process
``flush``               sends on all that was printed so far
``end``                 ends processes with all that they left behind
======================  =============================================================

======================  =============================================================
event                   says
======================  =============================================================
``loaded``              all that was to be imported is
``failed``              a module could not be imported; the server ends
``refused``             a process could not be forked
``ready``               what a process said when it was ready
``output``              what a process wrote to its standard output or error
``flushed``             what was printed has been sent
``ended``               how a process ended
``cleared``             what was to be ended has ended
======================  =============================================================
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Any

import psutil

from ddp_magic.forkserver.child import Child, fork
from ddp_magic.forkserver.system import adopt_orphans, end_descendants, set_name

_READ_BYTES = 65536
_QUIET_S = 0.3  # nothing is asked for that long before more is imported
_ENDING_POLL_S = 0.01
_OUTPUT_INTERVAL_S = 0.05
_UNSENT_BYTES = 2_000_000  # beyond that no output is sent: the notebook does not read
_BASE = ("IPython", "ipyparallel.engine.app", "ddp_magic.rank.process")  # the controller's too
_RANK = (
    "torch",
    "ddp_magic.rank.engine",
    # What an engine imports as it starts.
    "IPython.core.completerlib",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "ddp_magic.core.invoke",
    "ipykernel.debugger",
    "numpy.random",
    "sqlite3",
    "tornado.platform.asyncio",
    "tornado.queues",
)
# What the first optimizer imports, a second's work; done while there is nothing else to do, in
# pieces, for a request waits until an import has ended.
_LATER = ("sympy", "torch.distributed.tensor", "torch.distributed.fsdp", "torch._dynamo")


def serve(config: dict[str, Any]) -> int:
    """Run the fork server until the notebook has gone; return the exit code."""
    return _Server(config).run()


def _send_signal(pid: int, number: int) -> None:
    """Send a signal: Ctrl-C, as a terminal does, to what the process has started as well."""
    if number == signal.SIGINT:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
    else:
        os.kill(pid, number)


def _told(error: Exception) -> str:
    """Return a traceback without the frames of this module and of the import system."""
    told = traceback.TracebackException.from_exception(error)
    foreign = (__file__, importlib.__file__, "<frozen")
    told.stack = traceback.StackSummary.from_list(
        [frame for frame in told.stack if not frame.filename.startswith(foreign)]
    )
    return "".join(told.format())


class _Server:
    def __init__(self, config: dict[str, Any]) -> None:
        self._preload = (*_BASE, *_RANK, *config["preload"])
        self._folder = config["folder"]
        self._socket = socket.socket(fileno=config["requests_fd"])
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()
        self._received = b""
        self._unsent = bytearray()
        self._requests: deque[dict[str, Any]] = deque()
        self._waiting: list[dict[str, Any]] = []  # forks that need what is being imported
        self._children: dict[int, Child] = {}  # by process id
        self._ending: dict[str, Any] | None = None
        self._loaded = self._over = False
        self._output_due_s = 0.0

    def run(self) -> int:
        self._prepare()
        for name in self._preload:
            try:
                importlib.import_module(name)
            except Exception as error:
                self._send(event="failed", module=name, error=_told(error))
                self._flush()
                return 1
            self._turn(0)
        gc.collect()
        self._loaded = True
        self._send(event="loaded")
        self._flush()
        later = deque(_LATER)
        while not self._over:
            may_import = bool(later) and not any(one.is_rank for one in self._children.values())
            if not self._turn(_QUIET_S if may_import else None) and may_import:
                with contextlib.suppress(Exception):  # a rank that needs it will be told
                    importlib.import_module(later.popleft())
        return 0

    def _prepare(self) -> None:
        set_name("ddp-forkserver")
        faulthandler.enable(2)
        adopt_orphans()
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._leave)
        self._selector.register(self._socket, selectors.EVENT_READ, None)
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)

    def _leave(self, *_: Any) -> None:
        """End all, as the guardian would: it has gone, or somebody wants this process to go."""
        end_descendants()
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(128 + signal.SIGTERM)

    # ---- one turn of the loop

    def _turn(self, timeout_s: float | None) -> bool:
        """Do what there is to do, waiting for it if need be; return whether there was something."""
        events = self._selector.select(self._patience_s(timeout_s))
        for key, _ in events:
            if key.fileobj is self._socket:
                self._receive()
            elif key.fileobj == self._wake_r:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_r, _READ_BYTES)
            elif key.data.read(key.fd) == b"":
                self._selector.unregister(key.fd)
        self._tell_ready()
        self._reap()
        while self._requests:
            self._handle(self._requests.popleft())
        if self._loaded:
            waiting, self._waiting = self._waiting, []
            for request in waiting:
                self._fork(request)
        self._go_on_ending()
        self._tell_output()
        self._flush()
        return bool(events or self._ending)

    def _patience_s(self, timeout_s: float | None) -> float | None:
        limits_s = [] if timeout_s is None else [timeout_s]
        if self._ending is not None:
            limits_s.append(_ENDING_POLL_S)
        sends = len(self._unsent) <= _UNSENT_BYTES
        if sends and any(child.has_output for child in self._children.values()):
            limits_s.append(max(0.0, self._output_due_s - time.monotonic()))
        return min(limits_s, default=None)

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._over = True
        *lines, self._received = (self._received + data).split(b"\n")
        self._requests += map(json.loads, lines)

    def _send(self, **event: Any) -> None:
        self._unsent += json.dumps(event).encode() + b"\n"

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._selector.modify(self._socket, wanted)

    # ---- requests

    def _handle(self, request: dict[str, Any]) -> None:
        if request["do"] == "fork":
            if request["is_rank"] and not self._loaded:
                self._waiting.append(request)
            else:
                self._fork(request)
        elif request["do"] == "signal":
            for child in self._children.values():  # not waited for, so the numbers are theirs
                if child.key == request["key"]:
                    _send_signal(child.pid, request["signal"])
        elif request["do"] == "flush":
            self._drain()
            self._send(event="flushed", id=request["id"])
        elif request["do"] == "end":
            self._begin_ending(request)

    def _fork(self, request: dict[str, Any]) -> None:
        gc.freeze()  # so that a collection, here or there, leaves the pages shared
        try:
            child = fork(request, close=self._own_files())
        except OSError as error:
            self._send(event="refused", key=request["key"], error=str(error))
            return
        self._children[child.pid] = child
        for fd in child.files:
            self._selector.register(fd, selectors.EVENT_READ, child)

    def _own_files(self) -> Iterator[int]:
        yield from (self._socket.fileno(), self._wake_r, self._wake_w)
        if hasattr(self._selector, "fileno"):  # epoll and kqueue are files themselves
            yield self._selector.fileno()
        for child in self._children.values():
            yield from child.files

    def _begin_ending(self, request: dict[str, Any]) -> None:
        """Ask processes to end; they are killed when their time is over."""
        keys = set(request["keys"])
        self._waiting = [one for one in self._waiting if one["key"] not in keys]
        children = [child for child in self._children.values() if child.key in keys]
        for child in children:
            os.kill(child.pid, signal.SIGTERM)
        deadline_s = time.monotonic() + request["grace_s"]
        self._ending = {"keys": keys, "deadline_s": deadline_s, "id": request["id"]}

    def _go_on_ending(self) -> None:
        if self._ending is None:
            return
        left = [child for child in self._children.values() if child.key in self._ending["keys"]]
        if left and time.monotonic() >= self._ending["deadline_s"]:
            for child in left:
                os.kill(child.pid, signal.SIGKILL)
        if not left and not self._kill_strays():
            self._send(event="cleared", id=self._ending["id"])
            self._ending = None

    def _kill_strays(self) -> bool:
        """Kill what ended processes have left behind; return whether there was something."""
        strays = [one for one in psutil.Process().children() if one.pid not in self._children]
        for process in strays:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return bool(strays)

    # ---- events

    def _reap(self) -> None:
        """Wait for every child that has ended, adopted ones too."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if (child := self._children.pop(pid, None)) is not None:
                    self._tell_end(child, status)

    def _tell_end(self, child: Child, status: int) -> None:
        end = child.end(status)
        self._tell_output_of(child)
        self._send(event="ended", key=child.key, end=vars(end))
        for fd in child.files:
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
            os.close(fd)

    def _tell_ready(self) -> None:
        for child in self._children.values():
            if (info := child.take_status()) is not None:
                self._send(event="ready", key=child.key, info=info)

    def _drain(self) -> None:
        for child in self._children.values():
            child.drain()
            self._tell_output_of(child)

    def _tell_output(self) -> None:
        now_s = time.monotonic()
        if now_s < self._output_due_s or len(self._unsent) > _UNSENT_BYTES:
            return
        for child in self._children.values():
            if child.has_output:
                self._tell_output_of(child)
                self._output_due_s = now_s + _OUTPUT_INTERVAL_S

    def _tell_output_of(self, child: Child) -> None:
        for stream, text in child.take_output():
            self._send(event="output", key=child.key, stream=stream, text=text)
