"""Python, packages, torch and the fork server, good and bad."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddp_magic.core.doctor.finding import Verdict
from ddp_magic.core.doctor.software import (
    Answer,
    Interpreter,
    Package,
    Torch,
    check_fork_server,
    check_packages,
    check_python,
    check_torch,
    is_older,
)

_PYTHON = Interpreter("3.12.1", "3.10", "/env/bin/python", exists=True, prefix="/env")
_TORCH = Torch("2.9.0+cpu")


@pytest.mark.parametrize(
    ("version", "least", "older"),
    [
        ("9.1", "9.1", False),
        ("9.1.0", "9.1", False),
        ("9.0.9", "9.1", True),
        ("10.0", "9.1", False),
        ("2.7.1+cu126", "2.7", False),
        ("2.6.0+cu126", "2.7", True),
        ("2.8.0rc1", "2.8", False),
        ("3.9.18", "3.10", True),
        ("9", "9.0.1", True),
        ("unknown", "9.1", False),
        ("9.1", "", False),
    ],
)
def test_versions_are_compared_as_numbers(version: str, least: str, older: bool) -> None:
    assert is_older(version, least) is older


def test_python() -> None:
    assert check_python(_PYTHON).verdict is Verdict.OK
    old = check_python(replace(_PYTHON, version="3.9.18"))
    assert old.verdict is Verdict.WRONG
    assert "3.9.18 (/env) is older than 3.10" in old.text
    gone = check_python(replace(_PYTHON, exists=False))
    assert gone.verdict is Verdict.WRONG
    assert "/env/bin/python" in gone.text


def test_packages_that_are_right_share_a_line() -> None:
    packages = [
        Package("ipyparallel", "9.2.0", "9.1", loaded="9.2.0"),
        Package("psutil", "7.0", "6.0"),
        Package("jupyterlab", None, "4.2", is_required=False),
    ]
    (finding,) = check_packages(packages)
    assert (finding.verdict, finding.text) == (Verdict.OK, "ipyparallel 9.2.0, 1 more as needed")


@pytest.mark.parametrize(
    ("package", "verdict", "text", "fix"),
    [
        (
            Package("ipyparallel", None, "9.1"),
            Verdict.WRONG,
            "is not installed",
            '%pip install "ipyparallel>=9.1"',
        ),
        (
            Package("torch", None, "2.7"),
            Verdict.WRONG,
            "is not installed",
            "https://pytorch.org/get-started/locally has the command that installs it",
        ),
        (
            Package("ipykernel", "6.29.5", "7.4"),
            Verdict.WRONG,
            "6.29.5 is older than 7.4, which is needed",
            '%pip install "ipykernel>=7.4", then restart the kernel',
        ),
        (
            Package("jupyterlab", "3.6", "4.2", is_required=False),
            Verdict.WRONG,
            "3.6 is older than 4.2, which is needed",
            '%pip install "jupyterlab>=4.2", then restart the kernel',
        ),
        (
            Package("anywidget", "0.11", "0.9", loaded="0.9.3"),
            Verdict.DEGRADED,
            "0.9.3 runs in this kernel, but 0.11 has been installed since",
            "restart the kernel",
        ),
    ],
)
def test_a_package_that_is_not_right(
    package: Package, verdict: Verdict, text: str, fix: str
) -> None:
    (finding,) = check_packages([package])
    assert (finding.check, finding.verdict) == (package.name, verdict)
    assert (finding.text, finding.fix) == (text, fix)


def test_torch_as_it_should_be() -> None:
    assert check_torch(Answer(_TORCH), _TORCH).text == "2.9.0+cpu (no CUDA), gloo"
    on_gpu = replace(_TORCH, version="2.9.0", cuda="12.8", nccl="2.27.3")
    assert check_torch(Answer(on_gpu), on_gpu).text == "2.9.0 (CUDA 12.8), gloo"


def test_torch_that_cannot_be_imported() -> None:
    answer = Answer(error="torch could not be imported: OSError: libgomp", of_import=True)
    finding = check_torch(answer, _TORCH)
    assert finding.verdict is Verdict.WRONG
    assert "libgomp" in finding.text
    assert finding.fix == "what does `python -c 'import torch'` say?"
    assert check_fork_server(answer).fix == "see torch"


@pytest.mark.parametrize(
    ("torch", "lack"),
    [
        (replace(_TORCH, distributed=False, gloo=False), "torch.distributed"),
        (replace(_TORCH, gloo=False), "gloo"),
    ],
)
def test_torch_that_lacks_what_ranks_need(torch: Torch, lack: str) -> None:
    finding = check_torch(Answer(torch), torch)
    assert finding.verdict is Verdict.WRONG
    assert finding.text == f"2.9.0+cpu is built without {lack}"


@pytest.mark.parametrize(
    ("answer", "verdict", "text"),
    [
        (Answer(_TORCH, took_s=0.05), Verdict.OK, "a process like a rank was ready after 0.05 s"),
        (Answer(took_s=2.4), Verdict.DEGRADED, "after 2.4 s torch was still being imported"),
        (Answer(took_s=2.4, imported=True), Verdict.DEGRADED, "in 2.4 s no process was ready"),
        (Answer(error="Doctor could not be started: no process left."), Verdict.WRONG, "no proc"),
    ],
)
def test_the_fork_server(answer: Answer, verdict: Verdict, text: str) -> None:
    finding = check_fork_server(answer)
    assert finding.verdict is verdict
    assert text in finding.text
