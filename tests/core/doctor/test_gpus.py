"""GPUs and NCCL: what there is, what torch can do with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddp_magic.core.doctor.finding import Finding, Verdict
from ddp_magic.core.doctor.gpus import Cuda, Gpu, Gpus, check_gpus, check_nccl
from ddp_magic.core.doctor.software import Torch

_H200 = Gpu("NVIDIA H200", "GPU-1a", 140 * 2**30, 139 * 2**30, (9, 0))
_TWO = Gpus((_H200, replace(_H200, uuid="GPU-2b")), driver="550.54", cuda=(12, 4), in_machine=2)
_CPU = Torch("2.9.0+cpu")
_CUDA = Torch("2.9.0", "12.8", "2.27.3", architectures=("sm_80", "sm_90", "compute_90"))


def _check(facts: Gpus, torch: Torch | None = _CUDA, cuda: Cuda | None = None) -> Finding:
    (finding,) = check_gpus(facts, torch, cuda or Cuda(facts.count))
    return finding


def test_without_gpus_the_cpu_is_as_it_should_be() -> None:
    assert _check(Gpus(), _CPU).text == "none: ranks train on the CPU"
    assert _check(Gpus(), _CUDA).verdict is Verdict.OK
    assert check_nccl(Gpus(), _CPU).verdict is Verdict.OK


def test_gpus_that_torch_can_use() -> None:
    assert _check(_TWO) == Finding("GPUs", Verdict.OK, "2 NVIDIA H200, driver 550.54")
    assert check_nccl(_TWO, _CUDA) == Finding("NCCL", Verdict.OK, "2.27.3")


def test_some_of_them_may_be_hidden() -> None:
    finding = _check(replace(_TWO, visible="1"))
    assert (finding.verdict, finding.text) == (
        Verdict.OK,
        "1 NVIDIA H200, driver 550.54, 1 more hidden by CUDA_VISIBLE_DEVICES",
    )
    assert _check(replace(_TWO, visible="GPU-2b")).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("visible", "verdict"),
    [("", Verdict.OK), ("-1", Verdict.OK), ("7", Verdict.DEGRADED), ("0,0", Verdict.DEGRADED)],
)
def test_all_of_them_may_be_hidden_on_purpose_or_not(visible: str, verdict: Verdict) -> None:
    finding = _check(replace(_TWO, visible=visible))
    assert finding.verdict is verdict
    assert f"CUDA_VISIBLE_DEVICES={visible!r} shows none" in finding.text


def test_a_gpu_without_a_driver() -> None:
    finding = _check(Gpus(in_machine=1), _CPU)
    assert finding.verdict is Verdict.DEGRADED
    assert finding.text == "1 GPU in the machine, but no driver: ranks train on the CPU"
    assert "--gpus all" in finding.fix


def test_a_driver_that_does_not_answer() -> None:
    finding = _check(Gpus(error="Driver/library version mismatch", in_machine=1))
    assert finding.verdict is Verdict.WRONG
    assert "Driver/library version mismatch" in finding.text
    assert "nvidia-smi" in finding.fix


def test_torch_without_cuda() -> None:
    finding = _check(_TWO, _CPU)
    assert finding.verdict is Verdict.WRONG
    assert finding.text == "2 NVIDIA H200, but torch 2.9.0+cpu is built without CUDA"
    assert "%ddp start --backend gloo" in finding.fix
    assert check_nccl(_TWO, _CPU).verdict is Verdict.WRONG


def test_a_driver_too_old_for_torch() -> None:
    finding = _check(_TWO, replace(_CUDA, cuda="13.0"))
    assert finding.verdict is Verdict.WRONG
    assert finding.text.endswith("driver 550.54 can CUDA 12.4, and torch needs 13.0")
    assert finding.fix == "install a newer driver, or a torch for CUDA 12"


@pytest.mark.parametrize(
    ("architectures", "has_code"),
    [
        (("sm_90",), True),
        (("sm_80", "sm_90a"), True),
        (("sm_80", "sm_86"), False),
        (("sm_100", "sm_120"), False),
        (("sm_70", "compute_80"), True),  # compiled as it is loaded
        (("sm_100", "compute_100"), False),
        (("gfx90a",), True),  # not for us to read
        ((), True),
    ],
)
def test_code_for_the_gpus(architectures: tuple[str, ...], has_code: bool) -> None:
    finding = _check(_TWO, replace(_CUDA, architectures=architectures))
    assert finding.verdict is (Verdict.OK if has_code else Verdict.WRONG)
    assert has_code or "has no code for NVIDIA H200" in finding.text


def test_torch_sees_fewer_than_the_driver() -> None:
    finding = _check(_TWO, cuda=Cuda(0, "CUDA initialization: unknown error"))
    assert finding.verdict is Verdict.WRONG
    assert "torch can use 0 of 2: CUDA initialization: unknown error" in finding.text


def test_what_is_not_known_is_said() -> None:
    assert _check(_TWO, cuda=Cuda()).verdict is Verdict.DEGRADED
    assert _check(_TWO, torch=None).fix == "see torch"
    assert check_nccl(_TWO, None).verdict is Verdict.DEGRADED


def test_memory_that_others_use() -> None:
    full = replace(_TWO, gpus=(_H200, replace(_H200, uuid="GPU-2b", free_bytes=2**30)))
    _, finding = check_gpus(full, _CUDA, Cuda(2))
    assert finding.verdict is Verdict.DEGRADED
    assert finding.text == "cuda:1 has 1.0 of 140 GiB free: others use it"
    assert len(list(check_gpus(replace(full, in_use=True), _CUDA, Cuda(2)))) == 1
