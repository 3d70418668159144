"""A rank's process as the fork server makes it: an ipyparallel engine in a forked process."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ipykernel.iostream import OutStream
from ipyparallel.engine.app import IPEngine
from traitlets.config import Config

from ddp_magic.core.unsent import WRITTEN_KEY, Tail


class RankStream(OutStream):
    """What ``print`` writes to; leaves the file descriptors to the fork server.

    ipykernel's own would read what compiled code writes there within the process, so that the last
    words of one that crashes were lost. What ``print`` writes is sent five times a second, and kept
    where the fork server finds it if this process ends before.
    """

    tails: Mapping[str, Tail] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, watchfd=False, **kwargs)
        self._tail = self.tails.get(self.name)
        self._taken_bytes = 0
        self._parent: Any = None  # of the buffer that was written to last
        self.pub_thread.schedule(partial(self.register_hook, self._count))  # hooks are a thread's

    def write(self, string: str) -> int | None:  # type: ignore[override]
        """Keep text to be sent soon; as ipykernel's does, but look for the buffer only once."""
        tail = self._tail
        if tail is None or os.getpid() != self._master_pid or not isinstance(string, str):
            return super().write(string)
        parent = self.parent_header
        with self._buffer_lock:
            if parent is not self._parent:
                self._parent, self._buffer = parent, self._buffers[frozenset(parent.items())]
            self._buffer.write(string)
            tail.write(string.encode(errors="backslashreplace"))
        if not self._flush_pending:
            self._schedule_flush()
        return len(string)

    def _rotate_buffers(self) -> Any:
        with self._buffer_lock:
            self._parent = None
            if self._tail is not None:
                self._taken_bytes = self._tail.written_bytes
            return super()._rotate_buffers()

    def _count(self, message: dict[str, Any]) -> dict[str, Any]:
        """Say with a message how much has been written by then."""
        message["metadata"][WRITTEN_KEY] = self._taken_bytes
        return message

    def fileno(self) -> int:
        """Return where compiled code and other processes write what belongs to this stream."""
        return 2 if self.name == "stderr" else 1


class ForkedEngine(IPEngine):
    """An engine that is given its controller's addresses and tells when it has registered."""

    def tell_ready(self, info: dict[str, Any]) -> None:
        """Say that the engine has registered."""

    def init_signal(self) -> None:
        """Leave on SIGTERM, at once, whatever runs; SIGINT is for cells alone."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, partial(_leave, os.getpid()))

    async def complete_registration(self, *args: Any) -> None:
        """Connect, as the controller has answered."""
        await super().complete_registration(*args)
        self.tell_ready({"engine_id": self.id})


def _leave(rank_pid: int, *_: Any) -> None:
    """Do what the user's code has registered for its exit, and end."""
    if os.getpid() != rank_pid:  # what the rank has registered is not for those that it forks
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    atexit._run_exitfuncs()
    os._exit(0)


def run(config: dict[str, Any], ready: Callable[[dict[str, Any]], None]) -> None:
    """Run an engine until it is ended.

    Parameters
    ----------
    config
        ``args``: an engine's command line; ``connection``: a controller's addresses, unless the
        command line or the environment tells them; ``path``: where modules are found;
        ``tails``: where each stream keeps its last (see `core.unsent`).
    ready
        Is told the engine's id as soon as it has one.
    """
    sys.argv = [""]
    faulthandler.enable(2, all_threads=False)  # a crash of compiled code says which line called it
    RankStream.tails = config.get("tails", {})
    settings = Config()
    settings.IPEngine.out_stream_factory = RankStream
    engine = ForkedEngine.instance(config=settings)
    engine.connection_info_env = config["connection"] or os.environ.get("IPP_CONNECTION_INFO", "")
    engine.tell_ready = ready
    engine.work_dir = os.getcwd()  # by default, where the class was imported
    engine.initialize(config["args"])
    sys.path[:] = config["path"]  # with the working directory where the notebook has it
    engine.start()
