"""JupyterLab in a headless Chromium: a server of its own, pages, notebooks, screenshots."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Browser, Locator, Page

DEADLINE_S = 60.0
CHROMIUM_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_SETTINGS = {
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": (
        '{"fetchNews": "false", "checkForUpdates": false}'
    ),
    "@jupyterlab/docmanager-extension/plugin.jupyterlab-settings": '{"autosave": false}',
}

# The panel that shows the notebook, as JupyterLab's own objects.
_NONE = "{shouldStart: false, canStart: false, shouldReuse: false}"
_PANEL = "window.jupyterapp.shell.currentWidget"


def chromium() -> str | None:
    """Path of an installed Chromium or Chrome, None where there is none."""
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


class LabServer:
    """One ``jupyter lab`` on a free loopback port, with a home and settings of its own.

    Parameters
    ----------
    home
        An empty directory; the notebooks live in ``home / "root"``.
    """

    def __init__(self, home: Path) -> None:
        self.root = home / "root"
        self.root.mkdir(parents=True)
        self.token = secrets.token_hex(16)
        self.port = _free_port()
        self._log = home / "server.log"
        settings = home / "settings"
        _write_settings(settings)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                env=_environment(home, settings),
                cwd=self.root,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._wait_until_up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _command(self) -> list[str]:
        options = (
            "--no-browser",
            "--allow-root",
            "--LabApp.expose_app_in_browser=True",
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={self.root}",
            f"--IdentityProvider.token={self.token}",
        )
        return [sys.executable, "-m", "jupyter", "lab", *options]

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError(f"jupyter lab did not start:\n{self._log.read_text()}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/api/status?token={self.token}", timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def close(self) -> None:
        """End the server; it ends its kernels."""
        self._process.terminate()
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Lab:
    """A server and a browser: opens notebooks."""

    def __init__(self, server: LabServer, browser: Browser) -> None:
        self.server = server
        self.root = server.root
        self._browser = browser
        self._workspaces = 0

    def open(self, name: str, *, kernel: bool = True, dark: bool = False) -> NotebookPage:
        """Open a notebook of ``root`` in a fresh browser context.

        Parameters
        ----------
        name
            The notebook's path below ``root``.
        kernel
            Start its kernel; False opens the file alone.
        dark
            JupyterLab's dark theme.
        """
        context = self._browser.new_context(viewport={"width": 1100, "height": 900})
        page = context.new_page()
        self._workspaces += 1
        workspace = f"{self.server.url}/lab/workspaces/test{self._workspaces}"
        page.goto(f"{workspace}?token={self.server.token}")
        page.wait_for_function("window.jupyterapp !== undefined", timeout=DEADLINE_S * 1000)
        page.evaluate("window.jupyterapp.restored")
        theme = "JupyterLab Dark" if dark else "JupyterLab Light"
        page.evaluate(
            "t => window.jupyterapp.commands.execute('apputils:change-theme', {theme: t})", theme
        )
        if not kernel:
            page.evaluate(f"window.jupyterapp.docRegistry.getKernelPreference = () => ({_NONE})")
        page.evaluate(
            "args => window.jupyterapp.commands.execute('docmanager:open', args)"
            ".then(w => Promise.all([w.revealed, w.context.ready])).then(() => null)",
            {"path": name, "factory": "Notebook"},
        )
        notebook = NotebookPage(page)
        if kernel:
            notebook.wait_for(f"{_PANEL}?.sessionContext.session?.kernel?.status === 'idle'")
        page.evaluate("window.jupyterapp.shell.collapseLeft()")
        return notebook


class NotebookPage:
    """An open notebook: run, watch, look, save."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def wait_for(self, expression: str, timeout_s: float = DEADLINE_S) -> None:
        """Wait until a JavaScript expression is true."""
        self.page.wait_for_function(expression, timeout=timeout_s * 1000)

    def run_all(self) -> None:
        """Start every cell; does not wait for them."""
        self._start("notebook:run-all-cells")

    def run_cell(self, index: int) -> None:
        """Start one cell; does not wait for it."""
        self.page.evaluate(f"i => {{ {_PANEL}.content.activeCellIndex = i }}", index)
        self._start("notebook:run-cell")

    def _start(self, command: str) -> None:
        self.page.evaluate("c => { window.jupyterapp.commands.execute(c) }", command)

    def edit_end(self, index: int) -> None:
        """Put the cursor at the end of a cell's code."""
        self.cell(index).locator(".cm-content").click()
        self.page.keyboard.press("Control+End")

    def wait_until_run(self, index: int, timeout_s: float = DEADLINE_S) -> None:
        """Wait until a cell that was started has ended."""
        self.wait_for(self.has_run(index), timeout_s)

    def has_run(self, index: int) -> str:
        """Return a JavaScript expression that tells whether a cell that was started has ended."""
        cell = self._cell(index)
        return f"{cell}.executionCount !== null && {cell}.executionState === 'idle'"

    def running(self, index: int) -> bool:
        """Tell whether a cell runs (the kernel's status is no measure: subshells change it too)."""
        return bool(self.evaluate(f"{self._cell(index)}.executionState === 'running'"))

    @property
    def has_kernel(self) -> bool:
        return bool(self.evaluate(f"!!{_PANEL}?.sessionContext.session?.kernel"))

    def trusted(self, index: int) -> bool:
        return bool(self.evaluate(f"{self._cell(index)}.trusted"))

    def cell(self, index: int) -> Locator:
        """A cell with its output."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def output(self, index: int) -> Locator:
        """The output area of a cell."""
        return self.cell(index).locator(".jp-OutputArea")

    def restart_kernel(self) -> None:
        """Restart the kernel, without asking."""
        self.evaluate(f"{_PANEL}.sessionContext.session.kernel.restart()")

    def save(self) -> None:
        """Save to disk."""
        self.evaluate("window.jupyterapp.commands.execute('docmanager:save')")

    def evaluate(self, expression: str, argument: Any = None) -> Any:
        return self.page.evaluate(expression, argument)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(self.page.screenshot())

    def close(self) -> None:
        """Shut the kernel down, if there is one, and close the page."""
        self.evaluate(f"{_PANEL}.sessionContext.shutdown()")
        self.page.context.close()

    @staticmethod
    def _cell(index: int) -> str:
        return f"{_PANEL}.content.widgets[{index}].model"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write_settings(directory: Path) -> None:
    for name, text in _SETTINGS.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _environment(home: Path, settings: Path) -> dict[str, str]:
    """The environment of a user with nothing of their own, on this interpreter."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "IPYTHON"))}
    return kept | {
        "HOME": str(home),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
    }


def notebook(*sources: str) -> str:
    """Return the text of a notebook file with these code cells, for this interpreter's kernel."""
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in sources]
    kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.writes(
        nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernelspec})
    )
