"""The fork server as a launcher of ipyparallel's: ``ipcluster start --engines=ddp_magic``."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any

from ipyparallel.cluster.launcher import EngineLauncher, NotRunning, ProcessStateError

from ddp_magic.core.processend import ProcessEnd
from ddp_magic.kernel.forks import ForkedProcess, ForkServer, module_path

_STOP_GRACE_S = 5.0
_OUTPUT_PIECES = 1000  # kept of what engines print


class ForkedEngineSetLauncher(EngineLauncher):
    """Engines that are forked from a process that has imported torch.

    They live as long as the process that launched them, and no other can take them over.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._server: ForkServer | None = None
        self._engines: dict[str, ForkedProcess] = {}
        self._ends: dict[str, Any] = {}
        self._output: deque[str] = deque(maxlen=_OUTPUT_PIECES)

    @classmethod
    def from_dict(cls, d: dict[str, Any], **kwargs: Any) -> ForkedEngineSetLauncher:
        """Refuse: engines of another process have ended with it."""
        raise NotRunning("forked engines end with the process that launched them")

    def find_args(self) -> list[str]:
        """Return what the log calls this."""
        return ["forked engines"]

    async def start(self, n: int) -> None:
        """Start ``n`` engines."""
        if self.state != "before":
            raise ProcessStateError(f"the engines were started already, their state: {self.state}")
        self.n = n
        self._server = ForkServer()
        environment = {**os.environ, **self.get_env()}
        args = [*self.cluster_args, *self.engine_args]
        config = {"connection": "", "args": args, "path": ["", *module_path()]}
        for index in map(str, range(n)):
            engine = self._server.fork(
                "ddp_magic.rank.process:run",
                config,
                name=f"Engine {index}",
                environment=environment,
                is_rank=True,
                on_output=lambda _, text: self._output.append(text),
            )
            self._engines[index] = engine
            # Not on the event loop: that of a `..._sync` call has gone when it returns.
            engine.ended.add_done_callback(partial(self._note_end, index))
        self.notify_start({"engines": n})

    def signal(self, sig: int | str) -> None:
        """Send a signal to all engines."""
        number = sig if isinstance(sig, int) else getattr(signal, sig.upper())
        for engine in self._engines.values():
            if self._server is not None:
                self._server.signal(engine, number)

    async def stop(self) -> None:
        """End the engines and the fork server."""
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.end, list(self._engines.values()), _STOP_GRACE_S)
            await asyncio.to_thread(server.close)
        if self.state == "running":
            self.notify_stop({"engines": self._ends, "exit_code": 0})

    async def join(self, timeout: float | None = None) -> None:
        """Wait until every engine has ended."""
        ended = [asyncio.wrap_future(engine.ended) for engine in self._engines.values()]
        if ended:
            _, pending = await asyncio.wait(ended, timeout=timeout)
            if pending:
                raise TimeoutError(f"{len(pending)} engines did not end in {timeout} seconds")

    def get_output(self, remove: bool = False) -> str:
        """Return what the engines have printed."""
        return "".join(self._output)

    def _note_end(self, index: str, ended: Future[ProcessEnd]) -> None:
        self._ends[index] = vars(ended.result())
        if len(self._ends) == self.n:
            codes = [end["exit_code"] for end in self._ends.values() if end["exit_code"] != 0]
            code = codes[0] if codes else 0
            self.notify_stop({"engines": self._ends, "exit_code": code})
