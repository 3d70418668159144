"""`binder/` promises a notebook that runs: the environment, and a machine of Binder's size."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.binder.image import FOLDER, MEMORY_BYTES, ROOT, Machine, lines, unmet

_QUICKSTART = ROOT / "notebooks" / "quickstart.ipynb"
_MOST_BYTES = 1.2e9
_DEADLINE_S = 150
_TOKEN = "binder"
_EXECUTE = """
import nbformat, sys
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=120, extra_arguments=["--log-level=ERROR"]).execute()
nbformat.write(notebook, sys.argv[1])
"""


def test_its_versions_are_those_of_this_repository() -> None:
    assert lines(FOLDER / "requirements.txt") == [
        "--extra-index-url https://download.pytorch.org/whl/cpu",
        "--constraint ../constraints.txt",
        ".[lab]",
    ]
    assert any(line.startswith("torch==") for line in lines(ROOT / "constraints.txt"))


def test_its_python_is_one_that_the_package_supports() -> None:
    match = re.fullmatch(r"python-(\d+\.\d+)\n", (FOLDER / "runtime.txt").read_text())
    assert match is not None
    supported = SpecifierSet(metadata.metadata("ddp-magic")["Requires-Python"])
    assert match[1] in supported


def test_what_is_installed_here_is_what_pip_would_leave_as_it_is() -> None:
    """The packages of these tests stand for Binder's: pip would find nothing to change in them."""
    assert unmet("lab", lines(ROOT / "constraints.txt")) == []
    assert unmet("lab", ["torch==0.1"]) != []


def test_it_is_built(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    built = subprocess.run(
        [FOLDER / "postBuild"],
        cwd=ROOT,
        env=os.environ | {"HOME": str(tmp_path), "PATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    on_cpu = "+cpu" in metadata.version("torch")
    assert built.returncode == (0 if on_cpu else 1), built.stderr
    assert on_cpu or "not from the CPU index" in built.stderr


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder to which everybody finds the way, other than pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="binder-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.timeout(2 * _DEADLINE_S)
def test_the_quickstart_runs_on_one_core_and_two_gigabytes_as_nobody(place: Path) -> None:
    began_s = time.monotonic()
    with Machine(place) as machine:
        notebook = machine.copy(_QUICKSTART)
        port = _free_port()
        server = (
            *(sys.executable, "-m", "jupyterlab", "--no-browser"),
            *(f"--ServerApp.port={port}", f"--IdentityProvider.token={_TOKEN}"),
            f"--ServerApp.root_dir={machine.home}",
        )
        with machine.run(*server) as lab:
            _await_server(port, lab)
            page = _get(port, f"lab/tree/notebooks/{notebook.name}")
            assert b"jupyter-config-data" in page
            with machine.run(sys.executable, "-c", _EXECUTE, notebook.name) as run:
                said, _ = run.communicate(timeout=_DEADLINE_S)
            assert run.returncode == 0, said
            model = json.loads(_get(port, f"api/contents/notebooks/{notebook.name}"))
        _check(json.dumps(model["content"]))
        assert sorted(path.name for path in machine.home.iterdir()) == ["notebooks"]
    used = machine.peak_bytes / 2**20
    print(f"{used:.0f} MiB at most, {time.monotonic() - began_s:.0f} s; {machine.limited_by}")
    assert 0 < machine.peak_bytes < _MOST_BYTES < MEMORY_BYTES


def _check(notebook: str) -> None:
    assert re.search(r"Test accuracy: 9\d\.\d%", notebook)
    assert "data:image/svg+xml" in notebook
    assert "Warning" not in notebook


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_server(port: int, lab: subprocess.Popen[str]) -> None:
    until_s = time.monotonic() + _DEADLINE_S
    while True:
        try:
            _get(port, "api/status")
            return
        except (urllib.error.URLError, ConnectionError) as error:
            if lab.poll() is not None or time.monotonic() > until_s:
                lab.kill()
                raise AssertionError(lab.communicate()[0]) from error
        time.sleep(0.05)


def _get(port: int, path: str) -> bytes:
    address = f"http://127.0.0.1:{port}/{path}?token={_TOKEN}"
    with urllib.request.urlopen(address, timeout=30) as response:
        content: bytes = response.read()
        return content
