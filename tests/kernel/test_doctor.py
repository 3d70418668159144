"""The doctor on a real machine: what it finds, how long it takes, what it leaves behind."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from ddp_magic.core.doctor.finding import Diagnosis, Finding, Verdict
from ddp_magic.core.doctor.frontend import Frontend
from ddp_magic.core.doctor.machine import Network
from ddp_magic.errors import StartError
from ddp_magic.kernel.doctor import gpus, machine, software
from ddp_magic.kernel.doctor.examination import examine, hinted
from ddp_magic.kernel.forks import ForkServer
from ddp_magic.kernel.machine import free_tasks
from tests.kernel.notebooks import named
from tests.leaks import children

_TERMINAL = Frontend(has_kernel=False, has_page=False)
_LONGEST_S = 3.0 + 2.0  # others use the processors at the same time
_PATIENCE_S = 60.0  # of tests of what it finds


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    server.loaded.result(_PATIENCE_S)
    yield server
    server.close()


def _of(diagnosis: Diagnosis, check: str) -> Finding:
    (finding,) = (one for one in diagnosis.findings if one.check == check)
    return finding


def test_this_machine_can_run_ranks(server: ForkServer) -> None:
    before = children()
    diagnosis = examine(_TERMINAL, server, patience_s=_PATIENCE_S)
    assert not [one for one in diagnosis.findings if one.verdict is Verdict.WRONG]
    assert metadata.version("torch").partition("+")[0] in _of(diagnosis, "torch").text
    assert _of(diagnosis, "fork server").verdict is Verdict.OK
    assert _of(diagnosis, "transfer").verdict is Verdict.OK
    assert "ipyparallel" in _of(diagnosis, "packages").text
    assert len(children()) <= len(before) + 1  # what was forked may be ending
    assert not any(one.name().startswith("ddp-rank") for one in children())


def test_a_fork_server_that_hangs_is_not_waited_for(server: ForkServer) -> None:
    process = named("ddp-forkserver")
    process.suspend()
    try:
        began_s = time.monotonic()
        diagnosis = examine(_TERMINAL, server)
        took_s = time.monotonic() - began_s
    finally:
        process.resume()
    assert took_s < _LONGEST_S
    assert _of(diagnosis, "fork server").verdict is Verdict.DEGRADED
    assert "no process was ready" in _of(diagnosis, "fork server").text
    assert _of(diagnosis, "torch").verdict is Verdict.OK  # as its files tell


def test_without_a_fork_server_one_is_started_and_ended() -> None:
    before = {one.pid for one in children()}
    diagnosis = examine(_TERMINAL, patience_s=_PATIENCE_S)
    assert _of(diagnosis, "fork server").verdict is Verdict.OK
    assert {one.pid for one in children()} <= before


def test_a_torch_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libgomp.so.1 is missing')")
    monkeypatch.syspath_prepend(str(tmp_path))
    diagnosis = examine(_TERMINAL, patience_s=_PATIENCE_S)
    torch = _of(diagnosis, "torch")
    assert torch.verdict is Verdict.WRONG
    assert "libgomp.so.1 is missing" in torch.text
    assert torch.fix
    assert diagnosis.problems[0] == torch


def test_a_name_server_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "_RESOLVE", "import signal; signal.pause()")
    lookup = machine.NameLookup()
    found = lookup.result(time.monotonic())
    assert (found.name, found.address, found.error) == (socket.gethostname(), "", "")
    lookup.close()


def test_gpus_on_the_bus_are_counted_without_a_driver(tmp_path: Path) -> None:
    for name, vendor, kind in [("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300")]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    (tmp_path / "c").mkdir()
    assert gpus.gpus(in_use=False, devices=tmp_path).in_machine == 1


def test_torchs_files_tell_how_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('not to be imported')")
    told = "__version__ = '2.9.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
    (tmp_path / "torch" / "version.py").write_text(told)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    torch = software.torch_on_disk()
    assert torch is not None
    assert (torch.version, torch.cuda, bool(torch.nccl)) == ("2.9.0+cu128", "12.8", True)


def test_folders_and_interfaces_that_cannot_be_used(tmp_path: Path) -> None:
    assert machine.room(str(tmp_path / "none")).error == "No such file or directory"
    assert machine.room(str(tmp_path)).free_bytes > 0
    assert machine.network("ddp-none") == Network("ddp-none", is_there=False)


def test_a_containers_processes(tmp_path: Path) -> None:
    (tmp_path / "pids.max").write_text("100\n")
    (tmp_path / "pids.current").write_text("60\n")
    assert free_tasks(tmp_path) == 40
    (tmp_path / "pids.max").write_text("max\n")
    assert free_tasks(tmp_path) is None or free_tasks(tmp_path) > 0  # type: ignore[operator]


def test_a_start_that_failed_names_what_is_wrong_here(monkeypatch: pytest.MonkeyPatch) -> None:
    error = StartError("Rank 0 has died.", context="its last words")
    assert hinted(error) is error  # nothing is wrong here
    monkeypatch.setattr(machine, "network", lambda name: Network(name, is_up=False))
    told = hinted(error)
    assert told.fix == "`%ddp doctor` says more; it finds wrong: network."
    assert (told.cause, told.context) == (error.cause, error.context)
    known = StartError("No folder could be made.", fix="Set TMPDIR.")
    assert hinted(known) is known
