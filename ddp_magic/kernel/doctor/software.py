"""What is installed, without importing it."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from ddp_magic.core.doctor.software import Interpreter, Package, Torch

_DISTRIBUTION = "ddp-magic"
_OPTIONAL = ("jupyterlab", "notebook")
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*(?:>=\s*(?P<least>[\w.]+))?(?P<rest>.*)")


def interpreter() -> Interpreter:
    """Return what is known of this Python."""
    program = sys.executable or ""
    exists = os.path.isfile(program)
    return Interpreter(platform.python_version(), _least_python(), program, exists, sys.prefix)


def packages() -> list[Package]:
    """Return what this package requires, and those that serve the page, if they are here."""
    found = []
    for requirement in _requirements():
        match = _REQUIREMENT.match(requirement)
        assert match is not None  # pip has read it, too
        name, is_extra = match["name"], "extra ==" in match["rest"]
        if not is_extra or name in _OPTIONAL:
            found.append(_package(name, match["least"] or "", is_required=not is_extra))
    return list({package.name: package for package in found}.values())


def installed_version(name: str) -> str | None:
    """Return a package's version; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def torch_on_disk() -> Torch | None:
    """Return what torch's files tell of it; None if it is not installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return None
    told: dict[str, str] = {}
    for folder in spec.submodule_search_locations or ():
        with suppress(OSError):
            told = _assigned(Path(folder, "version.py").read_text())
    version = told.get("__version__") or installed_version("torch") or "of an unknown version"
    cuda = told.get("cuda", "")
    return Torch(version, cuda, "of an unknown version" if cuda else "")


def _assigned(source: str) -> dict[str, str]:
    """Return the texts that a module assigns to names."""
    matches = re.finditer(r"^(\w+)(?:\s*:[^=\n]*)?\s*=\s*['\"]([^'\"]*)['\"]", source, re.MULTILINE)
    return {match[1]: match[2] for match in matches}


def _least_python() -> str:
    try:
        return str(metadata.metadata(_DISTRIBUTION)["Requires-Python"]).lstrip(">= ")
    except metadata.PackageNotFoundError:
        return ""


def _requirements() -> list[str]:
    try:
        return metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # it runs from a folder that is on the path
        return ["torch", "ipyparallel", "ipykernel", "ipywidgets", "anywidget"]


def _package(name: str, least: str, *, is_required: bool) -> Package:
    module = sys.modules.get(name.replace("-", "_"))
    loaded = getattr(module, "__version__", "")
    return Package(
        name,
        installed_version(name),
        least,
        loaded=loaded if isinstance(loaded, str) else "",
        is_required=is_required,
    )
