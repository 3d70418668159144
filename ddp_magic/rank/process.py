"""A rank's process as the fork server makes it: an ipyparallel engine in a forked process."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from ipykernel.iostream import OutStream
from ipyparallel.engine.app import IPEngine
from traitlets.config import Config


class RankStream(OutStream):
    """What ``print`` writes to; leaves the file descriptors to the fork server.

    ipykernel's own would read what compiled code writes there within the process, so that the last
    words of one that crashes were lost.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, watchfd=False, **kwargs)

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
        signal.signal(signal.SIGTERM, _leave)

    async def complete_registration(self, *args: Any) -> None:
        """Connect, as the controller has answered."""
        await super().complete_registration(*args)
        self.tell_ready({"engine_id": self.id})


def _leave(*_: Any) -> None:
    """Do what the user's code has registered for its exit, and end."""
    atexit._run_exitfuncs()
    os._exit(0)


def run(config: dict[str, Any], ready: Callable[[dict[str, Any]], None]) -> None:
    """Run an engine until it is ended.

    Parameters
    ----------
    config
        ``args``: an engine's command line; ``connection``: a controller's addresses, unless the
        command line or the environment tells them; ``path``: where modules are found.
    ready
        Is told the engine's id as soon as it has one.
    """
    sys.argv = [""]
    faulthandler.enable(2, all_threads=False)  # a crash of compiled code says which line called it
    settings = Config()
    settings.IPEngine.out_stream_factory = RankStream
    engine = ForkedEngine.instance(config=settings)
    engine.connection_info_env = config["connection"] or os.environ.get("IPP_CONNECTION_INFO", "")
    engine.tell_ready = ready
    engine.work_dir = os.getcwd()  # by default, where the class was imported
    engine.initialize(config["args"])
    sys.path[:] = config["path"]  # with the working directory where the notebook has it
    engine.start()
