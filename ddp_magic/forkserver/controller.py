"""The controller of a session: ipyparallel's, in one process, on unix sockets in a private folder.

ipyparallel's own needs eleven processes and a dozen TCP ports.
"""

from __future__ import annotations

import threading
from typing import Any

import ipyparallel.controller.app as ipp_controller
from traitlets.config import Config

from ddp_magic.forkserver.child import Ready

_SOCKET_COUNT = 40  # more than it binds
_ARGS = [
    "--IPController.use_threads=True",
    # Each request and its result would be kept for ever.
    "--IPController.db_class=NoDB",
    "--IPController.broadcast_scheduler_depth=0",
    "--TaskScheduler.scheme_name=pure",
    # An engine counts as registered at the hub's next heartbeat: 3 s apart by default.
    "--HeartMonitor.period=100",
    # A rank's death is told at once; silence alone must last as long as by default (30 s), for a
    # process that was suspended or swapped out is not dead.
    "--HeartMonitor.max_heartmonitor_misses=300",
    "--log-level=ERROR",
]


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
    settings = Config()
    settings.IPController.ports = list(range(1, _SOCKET_COUNT + 1))
    settings.IPController.location = "localhost"  # no host name is looked up
    settings.IPController.transport = "ipc"
    settings.IPController.ip = f"{config['folder']}/socket"
    app = Controller.instance(config=settings)
    app.initialize([f"--profile-dir={config['profile']}", *_ARGS])
    app.loop.add_callback(lambda: ready(app.connection_info()))
    app.start()
