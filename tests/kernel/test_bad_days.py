"""What a machine can lack: each ends the start at once, with the cause, the fix and nothing left.

The machine is made so by namespaces of the process's own, where the system allows those.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_magic import Session, SetupError, StartError
from ddp_magic.testing import RecordingView

_LOOPBACK_UP = """
import fcntl, socket, struct
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1 | 64))
"""
_SCRIPT = """
import os, resource, sys
{before}
import psutil
from ddp_magic import DdpMagicError, Session
session = Session(nproc={nproc})
try:
    session.start()
    session.run("print('runs on', rank)")
except DdpMagicError as error:
    print(type(error).__name__, error)
    assert not psutil.Process().children(), psutil.Process().children()
finally:
    session.stop()
"""


def start(*, unshare: str = "", shell: str = "true", before: str = "", nproc: int = 2) -> str:
    """Start ranks in a process of its own, set up by shell and Python code; return what it says."""
    script = _SCRIPT.format(before=before, nproc=nproc)
    command = ["bash", "-c", f'{shell} && exec "$0" "$@"', sys.executable, "-c", script]
    if unshare:
        command = ["unshare", *unshare.split(), *command]
        _skip_without(*command[: 1 + len(unshare.split())])
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _skip_without(*unshare: str) -> None:
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"this system does not allow `{' '.join(unshare)}`")


def test_no_free_port() -> None:
    said = start(
        unshare="-rn",
        shell="echo '60000 60001' > /proc/sys/net/ipv4/ip_local_port_range",
        before=_LOOPBACK_UP,
        nproc=4,
    )
    assert said.startswith("StartError Rank ")
    assert "finding the other ranks failed" in said
    assert "No port of the loopback interface is free" in said


def test_no_loopback_interface() -> None:
    said = start(unshare="-rn")
    assert "StartError" in said
    assert "ip link set lo up" in said


def test_a_full_disk(tmp_path: Path) -> None:
    said = start(
        unshare="-rm",
        shell=f"mount -t tmpfs -o size=64k,nr_inodes=2 none {tmp_path} && export TMPDIR={tmp_path}",
    )
    assert "StartError" in said
    assert "No space left on device" in said
    assert "set TMPDIR to a folder with space" in said


def test_a_folder_that_is_full_is_passed_over(tmp_path: Path) -> None:
    said = start(
        unshare="-rm",
        shell=f"mount -t tmpfs -o size=64k none {tmp_path} && cat /dev/zero > {tmp_path}/full"
        f" 2> /dev/null || export TMPDIR={tmp_path}",
    )
    assert said == "runs on 0\n[rank 1] runs on 1\n"


def test_a_hostname_that_does_not_resolve() -> None:
    said = start(unshare="-ru", shell="hostname nowhere.invalid")
    assert said == "runs on 0\n[rank 1] runs on 1\n"


def test_no_memory() -> None:
    limit = "resource.setrlimit(resource.RLIMIT_AS, (600 * 2**20,) * 2)"
    said = start(before=limit)
    assert said.startswith("StartError")


def test_more_ranks_than_there_is_memory_for() -> None:
    said = start(nproc=100_000)
    assert said.startswith("SetupError -n 100000: that many ranks need")
    assert "GiB are free" in said


@pytest.mark.parametrize("limit", [64, 100])
def test_too_few_files(limit: int) -> None:
    said = start(shell=f"ulimit -n {limit}")
    assert said.startswith("SetupError -n 2: that many ranks need")
    assert f"the limit is {limit}" in said


def test_few_files_are_enough_when_they_can_be_raised() -> None:
    said = start(shell="ulimit -Sn 64")
    assert said == "runs on 0\n[rank 1] runs on 1\n"


def fake_torch(folder: Path, code: str) -> str:
    """Make a torch of our own; return the folder to be put on PYTHONPATH."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(code)
    return str(folder)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import ctypes; ctypes.string_at(0)", "died of SIGSEGV"),
        ("import os; os.abort()", "died of SIGABRT"),
        ("import os; os._exit(7)", "exited with code 7"),
        ("raise ImportError('libcudart.so.13: cannot open')", "torch could not be imported: Imp"),
    ],
)
def test_a_torch_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    session = Session(nproc=2)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", fake_torch(tmp_path, code))
        with pytest.raises(StartError, match=words) as caught:
            session.start()
    assert "import" in caught.value.fix
    if "exit" not in code:
        assert str(tmp_path) in caught.value.context  # where
    session.start()  # without it; and the session was not spoilt
    session.stop()


def test_a_preload_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "goodmodule.py").write_text("value = 1")
    (tmp_path / "badmodule.py").write_text("def f():\n    raise OSError('no library')\nf()")
    monkeypatch.syspath_prepend(tmp_path)
    session = Session(nproc=2, preload=["nosuchmodule.part"])
    with pytest.raises(SetupError, match=r"No module named nosuchmodule\.part"):
        session.start()
    session.preload = ["badmodule"]
    with pytest.raises(StartError, match=r"badmodule .*could not be imported: .*no library") as e:
        session.start()
    assert [line for line in e.value.context.splitlines() if "File" in line] == [
        f'  File "{tmp_path}/badmodule.py", line 3, in <module>',
        f'  File "{tmp_path}/badmodule.py", line 2, in f',
    ]
    session.preload = ["goodmodule"]
    try:
        session.run("import sys\nthere = 'goodmodule' in sys.modules", view=RecordingView())
        assert session.pull("there") == [True, True]
    finally:
        session.stop()


@pytest.mark.parametrize("name", ["json", "keyword", "selectors", "torch"])
def test_files_of_the_users_named_as_modules(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text("raise RuntimeError('this is not the library')")
    monkeypatch.chdir(tmp_path)
    with Session(nproc=1) as session:
        session.run("x = 1", view=RecordingView())
        assert session.pull("x") == [1]


def test_a_working_directory_that_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    session = Session(nproc=2)
    with monkeypatch.context() as patch:
        patch.chdir(gone)
        gone.rmdir()
        with pytest.raises(SetupError, match="working directory is gone"):
            session.start()
    assert os.getcwd()
    session.start()
    session.stop()
