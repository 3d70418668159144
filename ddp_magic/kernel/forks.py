"""The notebook's end of the fork server."""

from __future__ import annotations

import json
import logging
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddp_magic.core.advice import advice_on
from ddp_magic.core.processend import ProcessEnd
from ddp_magic.errors import SetupError, StartError
from ddp_magic.kernel.ipythondir import ipython_environment
from ddp_magic.kernel.processes import end_processes

_log = logging.getLogger(__name__)
# A file of the user's in the working directory may have the name of a standard module.
_BOOT = (
    "import sys; sys.path[:] = filter(None, sys.path);"
    " import json; config = json.loads(sys.stdin.readline()); sys.path[:] = config['path'];"
    " from ddp_magic.forkserver.guardian import main; main(config, 0)"
)
_READ_BYTES = 65536
_TAIL_LINES = 20
_TAIL_BYTES = 4096
_END_TIMEOUT_S = 4.0
_FLUSH_TIMEOUT_S = 2.0
_LONGEST_SOCKET_PATH = 100  # bytes; the system's limit is 104 or 108
_SOCKET_NAME = "/socket:00"
_FOLDER_PREFIX = "ddp_magic-"

Output = Callable[[str, str], None]


class ForkedProcess:
    """A process that the fork server was asked for.

    Attributes
    ----------
    ready, ended
        Futures: what it says when it is ready, or `StartError` if it never will be; and its
        `ProcessEnd`.
    """

    def __init__(self, key: int, name: str, on_output: Output) -> None:
        self.key = key
        self.name = name
        self.ready: Future[dict[str, Any]] = Future()
        self.ended: Future[ProcessEnd] = Future()
        self.on_output = on_output

    def fail(self, error: StartError) -> None:
        """Note that it does not run, and never will."""
        if not self.ready.done():
            self.ready.set_exception(error)

    def end(self, end: ProcessEnd) -> None:
        """Note how it ended."""
        if not self.ended.done():
            self.ended.set_result(end)
        said = f": {end.last_line}" if end.exit_code and end.last_line else ""
        self.fail(
            StartError(
                f"{self.name} {end.sentence} while it started{said or '.'}",
                fix=advice_on(end.tail),
                context=end.last_lines,
            )
        )


class ForkServer:
    """A process that imports torch once and forks others, which all end with this process.

    Parameters
    ----------
    preload
        Modules to import besides torch.

    Attributes
    ----------
    folder
        A folder that only this user can enter, removed at the end.
    controller
        The controller's process, if there is one.
    loaded
        A future: None, or `StartError` if something could not be imported.
    lost
        A future: what ended, and how, if it was not `close` that ended the server.
    """

    def __init__(self, preload: Iterable[str] = ()) -> None:
        self.preload = tuple(preload)
        self.environment = dict(os.environ)
        self.folder = _make_folder()
        self.controller: ForkedProcess | None = None
        self.loaded: Future[None] = Future()
        self.lost: Future[str] = Future()
        self._processes: dict[int, ForkedProcess] = {}
        self._asked: dict[int, Future[None]] = {}
        self._last_key = 0
        self._lock = threading.Lock()
        self._tail = b""
        self._closing = False
        try:
            self._guardian = self._start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self._reader = threading.Thread(target=self._read, name="ddp fork server", daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """Whether it can be asked for processes."""
        return not self._closing and not self.lost.done()

    def fork(
        self,
        target: str,
        config: dict[str, Any],
        *,
        name: str,
        environment: Mapping[str, str],
        is_rank: bool,
        on_output: Output,
        tail_bytes: int = 0,
    ) -> ForkedProcess:
        """Ask for a process that calls ``target(config, ready)`` in this working directory.

        Parameters
        ----------
        target
            ``"package.module:function"``.
        name
            As errors name it: ``"Rank 3"``.
        environment
            All that its environment has.
        is_rank
            Whether it needs torch, and so waits until that has been imported.
        on_output
            Is called with stream and text, on the server's thread.
        tail_bytes
            How much memory holds the last that it prints (see `core.unsent`).
        """
        with self._lock:
            self._last_key += 1
            process = ForkedProcess(self._last_key, name, on_output)
            self._processes[process.key] = process
        self._send(
            do="fork",
            key=process.key,
            target=target,
            config=config,
            name=f"ddp-{name.lower().replace(' ', '-')}",
            environment=dict(environment),
            folder=_working_directory(),
            path=_library_path(),
            is_rank=is_rank,
            tail_bytes=tail_bytes,
        )
        return process

    def fork_controller(self) -> ForkedProcess:
        """Ask for the controller of ipyparallel, which is ready before torch has been imported."""
        self.controller = self.fork(
            "ddp_magic.forkserver.controller:run",
            {"folder": str(self.folder), "profile": str(self.folder / "profile")},
            name="Controller",
            environment=self.environment | ipython_environment(self.folder),
            is_rank=False,
            on_output=_ignore,
        )
        return self.controller

    def signal(self, process: ForkedProcess, number: int) -> None:
        """Send a signal to a process, if it has not ended."""
        if number not in signal.valid_signals():
            raise ValueError(f"{number} is no signal")
        self._send(do="signal", key=process.key, signal=number)

    def end(self, processes: Iterable[ForkedProcess], grace_s: float) -> bool:
        """End processes with all that they started; return whether the server has done so.

        Parameters
        ----------
        grace_s
            How long they have to end by themselves.
        """
        return self._ask(
            "end", _END_TIMEOUT_S + grace_s, keys=[one.key for one in processes], grace_s=grace_s
        )

    def flush(self) -> bool:
        """Have all that processes have printed so far passed on; return whether it was in time."""
        return self._ask("flush", _FLUSH_TIMEOUT_S)

    def abandon(self) -> None:
        """Have everything end, as if this process had; may be called on any thread."""
        assert self._guardian.stdin is not None
        with suppress(OSError):
            self._guardian.stdin.close()
        self._guardian.terminate()  # a process forked from this one may hold the pipe open

    def close(self) -> None:
        """End the server and every process of it, and remove the folder."""
        self._closing = True
        self.abandon()
        try:
            self._guardian.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            end_processes([self._guardian.pid], 0)  # it is stopped, or its system is very slow
            self._guardian.wait()
        if threading.current_thread() is not self._reader:
            self._reader.join()
        self._socket.close()
        assert self._guardian.stdout is not None
        self._guardian.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- starting

    def _start(self) -> subprocess.Popen[bytes]:
        path = _library_path()
        environment = self.environment | {"OPENBLAS_NUM_THREADS": "1"}  # no threads to fork
        if "error" in environment.get("PYTHONWARNINGS", ""):
            del environment["PYTHONWARNINGS"]  # libraries warn as they start, and would not
        self._socket, theirs = socket.socketpair()
        with theirs:
            guardian = subprocess.Popen(
                [sys.executable, "-c", _BOOT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=environment,
            )
            config = {
                "path": path,
                "notebook": os.getpid(),
                "requests_fd": theirs.fileno(),
                "folder": str(self.folder),
                "preload": self.preload,
            }
        assert guardian.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: its last words are read as any other's
            guardian.stdin.write(json.dumps(config).encode() + b"\n")
            guardian.stdin.flush()
        return guardian

    def _ask(self, do: str, timeout_s: float, **request: Any) -> bool:
        """Send a request and wait until it has been done, or the server has gone."""
        with self._lock:
            self._last_key += 1
            number, done = self._last_key, Future[None]()
            self._asked[number] = done
        self._send(do=do, id=number, **request)
        either: list[Future[Any]] = [done, self.lost]
        wait(either, timeout_s, return_when=FIRST_COMPLETED)
        self._asked.pop(number)
        return done.done()

    def _send(self, **request: Any) -> None:
        with self._lock, suppress(OSError):  # it has gone: that is told by `lost`
            self._socket.sendall(json.dumps(request).encode() + b"\n")

    # ---- on the reader's thread

    def _read(self) -> None:
        assert self._guardian.stdout is not None
        received = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._guardian.stdout, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    data = _read_some(key.fd)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is self._socket:
                        *lines, received = (received + data).split(b"\n")
                        for line in lines:
                            self._on_event(json.loads(line))
                    else:
                        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        self._on_lost()

    def _on_event(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "loaded":
            self.loaded.set_result(None)
        elif kind == "failed":
            self.loaded.set_exception(_unimportable(event["module"], event["error"]))
        elif kind in ("cleared", "flushed"):
            if (done := self._asked.get(event["id"])) is not None:
                done.set_result(None)
        else:
            self._on_process(self._processes[event["key"]], kind, event)

    def _on_process(self, process: ForkedProcess, kind: str, event: dict[str, Any]) -> None:
        if kind == "ready":
            process.ready.set_result(event["info"])
        elif kind == "output":
            try:
                process.on_output(event["stream"], event["text"])
            except Exception:  # whoever shows it; all that the ranks need comes on this thread
                _log.exception("%s has printed what could not be shown", process.name)
        elif kind == "refused":
            self._processes.pop(process.key)
            process.fail(
                StartError(
                    f"{process.name} could not be started: {event['error']}.",
                    fix=advice_on(event["error"]) or "Start fewer ranks with -n.",
                )
            )
        elif kind == "ended":
            self._processes.pop(process.key)
            process.end(ProcessEnd(**event["end"]))

    def _on_lost(self) -> None:
        """Note that the guardian has ended, and all else with it."""
        code = self._guardian.wait()
        end = _end_of(code)
        what = "guardian" if code < 0 else "fork server"  # whose end the guardian's exit code is
        tail = self._tail.decode(errors="replace").strip()
        if not self.loaded.done():
            self.loaded.set_exception(
                StartError(
                    f"The {what}, which imports torch, {end.sentence}.",
                    fix="Does `import torch` work in a Python of its own?",
                    context=tail,
                )
            )
        if not self._closing:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.lost.set_result(f"the {what} {end.sentence}")
        for process in list(self._processes.values()):
            process.end(ProcessEnd(tail=tail))


def _read_some(fd: int) -> bytes:
    try:
        return os.read(fd, _READ_BYTES)
    except ConnectionError:
        return b""


def _end_of(code: int) -> ProcessEnd:
    """Read what the guardian's exit code says of the server, or of itself."""
    number = -code if code < 0 else code - 128
    try:
        return ProcessEnd(signal_name=signal.Signals(number).name)
    except ValueError:
        return ProcessEnd(exit_code=code)


def _unimportable(module: str, error: str) -> StartError:
    lines = error.strip().splitlines()
    where = " (from the preload list)" if not module.startswith(("torch", "ddp_magic")) else ""
    return StartError(
        f"{module}{where} could not be imported: {lines[-1]}",
        fix="Make sure that it imports in a Python of its own, then start again.",
        context="\n".join(lines[-_TAIL_LINES:]) if len(lines) > 2 else "",  # more than a heading
    )


def module_path() -> list[str]:
    """Return where this process finds modules, PYTHONPATH as it is now included."""
    added = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return list(dict.fromkeys((*(one for one in added if one not in sys.path), *sys.path)))


def _library_path() -> list[str]:
    """Return `module_path` with the working directory at the end.

    A module of the user's must not stand in for one of a library's while that is imported.
    """
    own = _working_directory()
    return [*(entry for entry in module_path() if entry not in ("", own)), own]


def _make_folder() -> Path:
    """Make a folder that only this user can enter, its path short enough for sockets."""
    try:
        folder = tempfile.mkdtemp(prefix=_FOLDER_PREFIX)
        if len(os.fsencode(folder + _SOCKET_NAME)) > _LONGEST_SOCKET_PATH:
            os.rmdir(folder)
            folder = tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir="/tmp")
        return Path(folder)
    except OSError as error:
        raise StartError(
            f"No folder for the session could be made: {error}.",
            fix=advice_on(str(error)) or "Set TMPDIR to a folder of yours with space.",
        ) from error


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise SetupError(
            "The notebook's working directory is gone.", fix="Go to another one with %cd."
        ) from error


def _ignore(stream: str, text: str) -> None:
    """Leave out what the controller prints: its last lines are told if it ends."""
