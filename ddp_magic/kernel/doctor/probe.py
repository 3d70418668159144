"""Asks about torch, by the fork server, a process that is made as ranks are."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import TimeoutError as FutureTimeout
from types import TracebackType
from typing import Any

from ddp_magic.core.doctor.gpus import Cuda
from ddp_magic.core.doctor.software import Answer, Torch
from ddp_magic.errors import DdpMagicError, StartError
from ddp_magic.kernel.forks import ForkedProcess, ForkServer
from ddp_magic.kernel.sharedmemory import SharedMemory

_TARGET = "ddp_magic.rank.torchfacts:"


class Probe:
    """Processes that tell about torch and end; no ranks.

    Parameters
    ----------
    server
        One that runs, to be asked; without one, or if it has gone, another is started and ended.

    Attributes
    ----------
    memory_error
        Why such a process cannot open memory of the notebook's; ``""`` if it can, or is not known.
    """

    def __init__(self, server: ForkServer | None) -> None:
        self._began_s = time.monotonic()
        self._own: ForkServer | None = None
        self._memory: SharedMemory | None = None
        self._failure: DdpMagicError | None = None
        self._processes: list[ForkedProcess] = []
        self.memory_error = ""
        try:
            if server is None or not server.alive:
                self._own = server = ForkServer()
            self._server = server
            self._memory = self._shared_memory()
            self._torch = self._ask("tell", memory=self._memory and self._memory.address)
        except (DdpMagicError, OSError) as error:
            told = error if isinstance(error, DdpMagicError) else StartError(str(error))
            self._failure = told

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._own is not None:
            self._own.close()
        elif self._processes and self._server.alive:
            for process in self._processes:
                if not process.ended.done():
                    self._server.signal(process, signal.SIGKILL)
        if self._memory is not None:
            self._memory.close()

    def answer(self, until_s: float) -> Answer:
        """Return what has been told by a time of the monotonic clock."""
        if self._failure is not None:
            return Answer(error=self._failure.cause, fix=self._failure.fix)
        try:
            told = self._await(self._torch, until_s)
        except FutureTimeout:
            return Answer(took_s=self._elapsed_s, imported=self._server.loaded.done())
        except StartError as error:
            of_import = self._server.loaded.done() and self._server.loaded.exception() is not None
            cause = self._server.loaded.exception() if of_import else error
            assert isinstance(cause, StartError)
            return Answer(error=cause.cause, fix=cause.fix, of_import=of_import)
        self.memory_error = self.memory_error or told["memory_error"]
        torch = told["torch"]
        torch["architectures"] = tuple(torch["architectures"])
        return Answer(Torch(**torch), self._elapsed_s)

    def cuda(self, until_s: float) -> Cuda:
        """Return what torch sees of the GPUs, if it is told in time."""
        try:
            return Cuda(**self._await(self._ask("tell_cuda"), until_s))
        except FutureTimeout:
            return Cuda()
        except StartError as error:
            return Cuda(0, error.cause)

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _ask(self, function: str, **config: Any) -> ForkedProcess:
        process = self._server.fork(
            f"{_TARGET}{function}",
            config,
            name="Doctor",
            environment=os.environ,
            is_rank=True,
            on_output=_ignore,
        )
        self._processes.append(process)
        return process

    def _await(self, process: ForkedProcess, until_s: float) -> dict[str, Any]:
        return process.ready.result(max(0.0, until_s - time.monotonic()))

    def _shared_memory(self) -> SharedMemory | None:
        if not SharedMemory.is_available():
            self.memory_error = "this system has no memfd_create, or no /proc"
            return None
        try:
            return SharedMemory()
        except OSError as error:
            self.memory_error = f"memfd_create: {error.strerror}"
            return None


def _ignore(stream: str, text: str) -> None:
    """Leave out what is printed meanwhile: the errors are told as the process ends."""
