"""The controller of a session: ipyparallel's, in one process, on unix sockets in a private folder.

ipyparallel's own needs nine processes and 16 TCP ports.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import ipyparallel.controller.app as ipp_controller
from ipyparallel.controller import heartmonitor
from tornado.ioloop import PeriodicCallback
from traitlets.config import Config

from ddp_magic.forkserver.child import Ready

_SOCKET_COUNT = 40  # more than it binds
_ARGS = [
    "--IPController.use_threads=True",
    # Each request and its result would be kept for ever.
    "--IPController.db_class=NoDB",
    "--IPController.broadcast_scheduler_depth=0",
    "--TaskScheduler.scheme_name=pure",
    "--log-level=ERROR",
]
_CALM_MS = 3000  # as by default: a rank's death is told at once, by who forked it
_QUICK_MS = 10
_SLOWING = 1.2  # the next period over the last


class HeartMonitor(heartmonitor.HeartMonitor):
    """A heart monitor that beats quickly when an engine registers, then ever more slowly.

    An engine counts as registered when it has answered a beat, and the next one is due. With the
    stock monitor's 3 s that is most of an engine's start; a short period is felt by every rank.
    """

    running: HeartMonitor

    def start(self) -> None:
        """Begin to beat."""
        super().start()
        HeartMonitor.running = self
        self._asyncio_loop = asyncio.get_running_loop()
        self._beats_every(_CALM_MS)

    def quicken(self) -> None:
        """Beat quickly for a while; may be called on any thread."""
        self._asyncio_loop.call_soon_threadsafe(self._beats_every, _QUICK_MS)

    def beat(self) -> None:
        """Beat once."""
        super().beat()
        if self._period_ms < _CALM_MS:
            self._beats_every(min(_CALM_MS, _SLOWING * self._period_ms))

    def _check_missed(self, missed: Any, on_probation: Any, hearts: Any) -> tuple[list[bytes], Any]:
        """Count a missed beat only where there was time to answer."""
        if self._period_ms < _CALM_MS:
            return [], on_probation
        failed: tuple[list[bytes], Any] = super()._check_missed(missed, on_probation, hearts)
        return failed

    def _beats_every(self, period_ms: float) -> None:
        self._period_ms = period_ms
        self.caller.stop()
        self.caller: PeriodicCallback = PeriodicCallback(self.beat, period_ms)
        self.caller.start()


class Hub(ipp_controller.Hub):
    """A hub that has engines' hearts listened to at once."""

    def register_engine(self, reg: Any, msg: dict[str, Any]) -> Any:
        """Answer an engine that wants to be registered."""
        engine_id = super().register_engine(reg, msg)
        HeartMonitor.running.quicken()
        return engine_id


class Controller(ipp_controller.IPController):
    """ipyparallel's controller, whose addresses are files."""

    write_connection_files = False  # what is in them is told through a pipe

    def construct_url(self, kind: str, channel: str, index: Any = None) -> str:
        """Return an address as engines and clients make it: the stock one differs for files."""
        info = getattr(self, "internal_info" if kind == "internal" else f"{kind}_info")
        number = info[channel] if index is None else info[channel][index]
        return f"{info['interface']}:{number}"

    def cleanup_connection_files(self) -> None:
        """Do nothing: there are none."""

    def terminate_children(self) -> None:
        """Do nothing: they are threads, and end with the process."""

    def connection_info(self) -> dict[str, dict[str, Any]]:
        """Return what engines and clients need in order to connect."""
        common = {
            "key": self.session.key.decode("ascii"),
            "curve_serverkey": None,
            "location": self.location,
            "pack": self.session.packer,
            "unpack": self.session.unpacker,
            "signature_scheme": self.session.signature_scheme,
            "ssh": "",
        }
        # With the "pure" scheme a client gives up on tasks, and warns, when an engine ends.
        client = self.client_info | common | {"task_scheme": "none"}
        return {"engine": self.engine_info | common, "client": client}


def run(config: dict[str, Any], ready: Ready) -> None:
    """Run a controller until it is ended.

    Parameters
    ----------
    config
        ``folder``: the session's; ``profile``: an IPython profile's folder.
    ready
        Is told the connection info of engines and clients.
    """
    # The heart monitor is a process by itself, even of a controller with threads.
    ipp_controller.Process = threading.Thread
    ipp_controller.Hub = Hub
    heartmonitor.HeartMonitor = HeartMonitor
    settings = Config()
    settings.IPController.ports = list(range(1, _SOCKET_COUNT + 1))
    settings.IPController.location = "localhost"  # no host name is looked up
    settings.IPController.transport = "ipc"
    settings.IPController.ip = f"{config['folder']}/socket"
    app = Controller.instance(config=settings)
    app.initialize([f"--profile-dir={config['profile']}", *_ARGS])

    def tell_ready() -> None:
        ready(app.connection_info())

    app.loop.add_callback(tell_ready)
    app.start()
