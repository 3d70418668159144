"""GPUs: whether the ranks have them, and whether torch can use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddp_magic.core.doctor.finding import Finding, degraded, ok, wrong
from ddp_magic.core.doctor.software import Torch
from ddp_magic.core.topology import visible_devices

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_CUDA_TORCH = "https://pytorch.org/get-started/locally has the command that installs one"
_ON_CPU = "`%ddp start --backend gloo` trains on the CPU"
_DRIVER = "`nvidia-smi` says more; install or load NVIDIA's driver"
_LITTLE_FREE = 0.1


@dataclass(frozen=True)
class Gpu:
    """One GPU, as the driver tells.

    Attributes
    ----------
    capability
        Of its architecture: ``(9, 0)``.
    """

    name: str
    uuid: str
    total_bytes: int
    free_bytes: int
    capability: tuple[int, int]


@dataclass(frozen=True)
class Gpus:
    """What the driver tells of this machine.

    Attributes
    ----------
    driver
        Its version; ``""`` if there is none.
    cuda
        The newest CUDA that it can, ``(12, 4)``; None if that is not known.
    error
        Why it does not tell, other than that there is none.
    in_machine
        NVIDIA's GPUs on the bus, whether there is a driver or not.
    visible
        The value of CUDA_VISIBLE_DEVICES; None where it is not set.
    in_use
        Whether ranks of this notebook use them.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: tuple[int, int] | None = None
    error: str = ""
    in_machine: int = 0
    visible: str | None = None
    in_use: bool = False

    @property
    def chosen(self) -> list[Gpu]:
        """Those that the ranks see, in their order; of MIG slices nothing is known."""
        uuids = [gpu.uuid for gpu in self.gpus]
        named = visible_devices(self.visible, len(self.gpus), uuids)
        indices = (int(one) if one.isdigit() else uuids.index(one) for one in _plain(named))
        return [self.gpus[index] for index in indices]

    @property
    def count(self) -> int:
        """How many ranks there are by default on GPUs."""
        return len(visible_devices(self.visible, len(self.gpus), [gpu.uuid for gpu in self.gpus]))


@dataclass(frozen=True)
class Cuda:
    """What torch sees of the GPUs.

    Attributes
    ----------
    count
        How many; None if it was not asked, or did not answer in time.
    error
        What it says about that.
    """

    count: int | None = None
    error: str = ""


def check_gpus(facts: Gpus, torch: Torch | None, cuda: Cuda) -> Iterator[Finding]:
    """Judge the GPUs; without any, ranks train on the CPU, and that is as it should be."""
    if facts.error or (facts.in_machine and not facts.driver):
        yield _without_driver(facts)
    elif not facts.count:
        yield _none_visible(facts)
    else:
        yield _check_torch_on(facts, torch, cuda)
        yield from _check_memory(facts)


def check_nccl(facts: Gpus, torch: Torch | None) -> Finding:
    """Judge what ranks on GPUs communicate by."""
    if torch is None:
        return degraded("NCCL", "not known: torch could not be asked", "see torch")
    if not facts.count:
        return ok("NCCL", "not needed: ranks on the CPU use gloo")
    if not torch.nccl:
        return wrong("NCCL", f"torch {torch.version} is built without it", _ON_CPU)
    return ok("NCCL", torch.nccl)


def _plain(named: Sequence[str]) -> list[str]:
    return [one for one in named if not one.startswith("MIG-")]


def _without_driver(facts: Gpus) -> Finding:
    if facts.error:
        return wrong("GPUs", f"NVIDIA's driver does not answer: {facts.error}", _DRIVER)
    return degraded(
        "GPUs",
        f"{_count(facts.in_machine)} in the machine, but no driver: ranks train on the CPU",
        f"{_DRIVER}; a container needs `--gpus all`",
    )


def _none_visible(facts: Gpus) -> Finding:
    if not facts.gpus:
        return ok("GPUs", "none: ranks train on the CPU")
    text = f"{_count(len(facts.gpus))}, of which {_VARIABLE}={facts.visible!r} shows none"
    if facts.visible in ("", "-1"):  # that is how they are hidden on purpose
        return ok("GPUs", f"{text}: ranks train on the CPU")
    return degraded("GPUs", text, f"name those of 0 to {len(facts.gpus) - 1}, and restart ranks")


def _check_torch_on(facts: Gpus, torch: Torch | None, cuda: Cuda) -> Finding:
    have = _named(facts)
    if torch is None:
        return degraded("GPUs", f"{have}; whether torch can use them is not known", "see torch")
    if not torch.cuda:
        text = f"{have}, but torch {torch.version} is built without CUDA"
        return wrong("GPUs", text, f"install a build with it ({_CUDA_TORCH}), or {_ON_CPU}")
    if facts.cuda is not None and _major(torch.cuda) > facts.cuda[0]:
        newest = ".".join(map(str, facts.cuda))
        text = f"{have}, but driver {facts.driver} can CUDA {newest}, and torch needs {torch.cuda}"
        return wrong("GPUs", text, f"install a newer driver, or a torch for CUDA {facts.cuda[0]}")
    lacking = [gpu for gpu in facts.chosen if not _has_kernels(torch, gpu.capability)]
    if lacking:
        text = f"{have}, but torch {torch.version} has no code for {lacking[0].name}"
        return wrong("GPUs", text, f"install a build for sm_{_digits(lacking[0])} ({_CUDA_TORCH})")
    return _check_count(facts, have, cuda)


def _check_count(facts: Gpus, have: str, cuda: Cuda) -> Finding:
    if cuda.count is None:
        text = f"{have}; torch has not yet told whether it can use them"
        return degraded("GPUs", text, "run `%ddp doctor` again in a moment")
    if cuda.count != facts.count:
        said = f": {cuda.error}" if cuda.error else ""
        text = f"{have}, but torch can use {cuda.count} of {facts.count}{said}"
        return wrong("GPUs", text, "`nvidia-smi` says more; " + _ON_CPU)
    hidden = len(facts.gpus) - facts.count
    shown = f", {hidden} more hidden by {_VARIABLE}" if hidden > 0 else ""
    return ok("GPUs", f"{have}, driver {facts.driver}{shown}")


def _check_memory(facts: Gpus) -> Iterator[Finding]:
    """Say which GPUs others have filled; what ranks of this notebook use is theirs."""
    for index, gpu in enumerate(facts.chosen if not facts.in_use else ()):
        if gpu.free_bytes < _LITTLE_FREE * gpu.total_bytes:
            free, total = gpu.free_bytes / 2**30, gpu.total_bytes / 2**30
            text = f"cuda:{index} has {free:.1f} of {total:.0f} GiB free: others use it"
            yield degraded("GPU memory", text, f"`nvidia-smi` shows who; {_VARIABLE} chooses GPUs")


def _has_kernels(torch: Torch, capability: tuple[int, int]) -> bool:
    """Tell whether a build has code for a GPU: of its major version, or to be compiled for it."""
    major, minor = capability
    for name in torch.architectures:
        kind, _, number = name.partition("_")
        digits = number.rstrip("af")
        if not digits.isdecimal():
            return True  # not known how to read
        theirs = divmod(int(digits), 10)
        if kind == "sm" and theirs[0] == major and theirs[1] <= minor:
            return True
        if kind == "compute" and theirs <= (major, minor):
            return True
    return not torch.architectures


def _named(facts: Gpus) -> str:
    names = sorted({gpu.name for gpu in facts.chosen})
    return f"{facts.count} {' and '.join(names)}" if names else _count(facts.count)


def _count(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _digits(gpu: Gpu) -> str:
    return "".join(map(str, gpu.capability))


def _major(version: str) -> int:
    return int(version.partition(".")[0])
