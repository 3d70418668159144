"""Python, packages, torch, and the fork server that imports it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ddp_magic.core.doctor.finding import Finding, degraded, ok, wrong

_TOLD = ("ipyparallel", "ipykernel", "ipywidgets", "anywidget", "jupyterlab", "notebook")
_AGAIN = "run `%ddp doctor` again in a moment"
_GET_TORCH = "https://pytorch.org/get-started/locally has the command that installs it"
_IMPORT = "python -c 'import torch'"


@dataclass(frozen=True)
class Interpreter:
    """The Python of the notebook, which is that of the ranks as well.

    Attributes
    ----------
    version, least
        This one's, and the oldest that is supported.
    executable
        Its program; ``""`` if it is not known.
    exists
        Whether the program is there.
    prefix
        Its environment.
    """

    version: str
    least: str
    executable: str
    exists: bool
    prefix: str


@dataclass(frozen=True)
class Package:
    """A package, as its metadata tells of it.

    Attributes
    ----------
    installed
        Its version; None if it is not there.
    least
        The oldest that is supported; ``""``: any.
    loaded
        The version that this process has imported; ``""`` if it has not.
    is_required
        Whether nothing works without it.
    """

    name: str
    installed: str | None
    least: str = ""
    loaded: str = ""
    is_required: bool = True


@dataclass(frozen=True)
class Torch:
    """The ranks' torch.

    Attributes
    ----------
    cuda
        The version of CUDA that it is built with; ``""``: none.
    nccl
        The version of NCCL; ``""``: none.
    distributed, gloo
        Whether it has them.
    architectures
        What it has kernels for: ``"sm_90"``.
    """

    version: str
    cuda: str = ""
    nccl: str = ""
    distributed: bool = True
    gloo: bool = True
    architectures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What became of asking a process that was forked as ranks are.

    Attributes
    ----------
    torch
        What it told; None if it did not.
    took_s
        How long that took, or was waited for.
    error, fix
        Why there is no such process; both ``""`` if it was not waited for any longer.
    of_import
        Whether that is because something could not be imported.
    imported
        Whether torch had been imported, where nothing was told.
    """

    torch: Torch | None = None
    took_s: float = 0.0
    error: str = ""
    fix: str = ""
    of_import: bool = False
    imported: bool = False


def check_python(python: Interpreter) -> Finding:
    """Judge the interpreter."""
    if not python.exists:
        program = python.executable or "sys.executable is empty"
        return wrong(
            "Python",
            f"the program of this Python is not there ({program}), and ranks are started with it",
            "start the notebook with the `python` of an environment",
        )
    if is_older(python.version, python.least):
        text = f"{python.version} ({python.prefix}) is older than {python.least}"
        return wrong("Python", text, f"make an environment with Python {python.least} or later")
    return ok("Python", f"{python.version} ({python.prefix}), of notebook and ranks")


def check_packages(packages: Iterable[Package]) -> Iterator[Finding]:
    """Judge what is installed: a line for each package that is not right, and one for the rest."""
    good = []
    for package in packages:
        finding = _check_package(package)
        if finding is not None:
            yield finding
        elif package.installed is not None:
            good.append(package)
    told = [f"{one.name} {one.installed}" for one in good if one.name in _TOLD]
    others = len(good) - len(told)
    if good:
        yield ok("packages", ", ".join([*told, f"{others} more as needed"] if others else told))


def _check_package(package: Package) -> Finding | None:
    name, version = package.name, package.installed
    install = f'%pip install "{name}>={package.least}"' if package.least else f"%pip install {name}"
    if version is None:
        if not package.is_required:
            return None
        return wrong(name, "is not installed", _GET_TORCH if name == "torch" else install)
    if is_older(version, package.least):
        text = f"{version} is older than {package.least}, which is needed"
        return wrong(name, text, f"{install}, then restart the kernel")
    if package.loaded and package.loaded != version:
        return degraded(
            name,
            f"{package.loaded} runs in this kernel, but {version} has been installed since",
            "restart the kernel",
        )
    return None


def check_torch(answer: Answer, torch: Torch) -> Finding:
    """Judge torch.

    Parameters
    ----------
    torch
        As a process told, or else as its files do.
    """
    if answer.of_import:
        return wrong("torch", answer.error, answer.fix or f"what does `{_IMPORT}` say?")
    build = f"CUDA {torch.cuda}" if torch.cuda else "no CUDA"
    if not torch.distributed or not torch.gloo:
        lack = "gloo" if torch.distributed else "torch.distributed"
        return wrong("torch", f"{torch.version} is built without {lack}", _GET_TORCH)
    return ok("torch", f"{torch.version} ({build}), gloo")


def check_fork_server(answer: Answer) -> Finding:
    """Judge what ranks are forked from."""
    if answer.torch is not None:
        return ok("fork server", f"a process like a rank was ready after {answer.took_s:.2f} s")
    if answer.of_import:
        return degraded("fork server", "not tried: it imports torch first", "see torch")
    if answer.error:
        return wrong("fork server", answer.error, answer.fix)
    if answer.imported:
        text = f"has imported torch, but in {answer.took_s:.1f} s no process was ready"
        return degraded("fork server", text, f"is the machine busy? {_AGAIN}, or `%ddp restart`")
    text = f"after {answer.took_s:.1f} s torch was still being imported"
    return degraded("fork server", text, f"{_AGAIN}; `{_IMPORT}` says more if that goes on")


def is_older(version: str, least: str) -> bool:
    """Tell whether a version comes before another; what cannot be read does not."""
    mine, other = _numbers(version), _numbers(least)
    width = max(len(mine), len(other))
    return bool(mine) and _padded(mine, width) < _padded(other, width)


def _numbers(version: str) -> list[int]:
    """Return the numbers of a release: what follows them (``rc1``, ``+cpu``) counts for nothing."""
    match = re.match(r"\s*v?(\d+(?:\.\d+)*)", version)
    return [int(part) for part in match[1].split(".")] if match else []


def _padded(numbers: list[int], width: int) -> list[int]:
    return numbers + [0] * (width - len(numbers))
