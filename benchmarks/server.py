"""A Jupyter server as a browser would use it, without a browser."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from jupyter_client import BlockingKernelClient
from memory import Started
from notebook import Page

_START_TIMEOUT_S = 60.0
_REQUEST_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 10.0
_POLL_S = 0.1


class Server:
    """A server on a loopback port, behind a token, in a folder of its own.

    Parameters
    ----------
    python
        The interpreter that runs it.
    module
        What it runs: ``"jupyterlab"``, or ``"jupyter_server"`` with its extensions alone.

    Attributes
    ----------
    folder
        Where its notebooks are.
    pid
        Its process id.
    """

    def __init__(self, started: Started, python: str, module: str) -> None:
        self._started = started
        self._token = secrets.token_hex(16)
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        self.folder = f"{started.folder}/notebooks"
        Path(self.folder).mkdir()
        options = {
            "ip": "127.0.0.1",
            "port": port,
            "port_retries": 0,
            "open_browser": False,
            "allow_root": True,
            "root_dir": self.folder,
        }
        arguments = [f"--ServerApp.{name}={value}" for name, value in options.items()]
        self._log_path = Path(started.folder, "server.log")
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-m", module, f"--IdentityProvider.token={self._token}", *arguments],
                env=started.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.pid = self._process.pid
        self._clients: list[BlockingKernelClient] = []

    def __enter__(self) -> Server:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                self.ask("GET", "/api/status")
                return self
            except (ConnectionError, urllib.error.URLError):
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    self.__exit__(None, None, None)
                    raise RuntimeError(self._log_path.read_text()) from None
            time.sleep(_POLL_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for client in self._clients:
            client.stop_channels()
        self._process.terminate()  # ends its kernels, then itself
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Make a request and return the answer."""
        request = urllib.request.Request(
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self._token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S) as response:
            return json.loads(response.read() or b"null")

    def open(self, name: str) -> tuple[str, Page, BlockingKernelClient]:
        """Open a notebook with a kernel; return the kernel's id, and a page with its client."""
        session = {"path": name, "name": name, "type": "notebook", "kernel": {"name": "python3"}}
        kernel_id = self.ask("POST", "/api/sessions", session)["kernel"]["id"]
        client = BlockingKernelClient(connection_file=self._connection_file(kernel_id))
        client.load_connection_file()
        client.start_channels()
        self._clients.append(client)
        client.wait_for_ready(timeout=_START_TIMEOUT_S)
        return kernel_id, Page(client), client

    def kernel_pid(self, kernel_id: str) -> int:
        """Return the process id of a kernel."""
        name = Path(self._connection_file(kernel_id)).name
        for process in self._started.processes():
            if any(argument.endswith(name) for argument in process.cmdline()):
                return process.pid
        raise RuntimeError(f"There is no process of the kernel {kernel_id}.")

    def _connection_file(self, kernel_id: str) -> str:
        return f"{self._started.environment['JUPYTER_RUNTIME_DIR']}/kernel-{kernel_id}.json"


def free_port() -> int:
    """Return a port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
