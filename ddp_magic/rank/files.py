"""`torch.save` that all ranks may call with one path: readers never meet half a file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from ddp_magic.rank.patching import Patches

Save = Callable[..., None]


class AtomicSave:
    """Lets `torch.save` write beside the path and move the finished file there.

    Of ranks that save to one path the last to finish wins. A save that fails leaves the former
    file as it was. File-like objects, devices and pipes are written to as ever.
    """

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self) -> None:
        """Replace `torch.save`."""
        self._patches.replace(torch, "save", _atomic)
        self._patches.replace(torch.serialization, "save", lambda _: torch.save)

    def uninstall(self) -> None:
        """Put `torch.save` back."""
        self._patches.undo()


def _atomic(original: Save) -> Save:
    @wraps(original)
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        target = _replaceable(f)
        if target is None:
            return original(obj, f, *args, **kwargs)
        # The archive inside is named after the file: keep the name, in a folder of its own.
        folder = Path(tempfile.mkdtemp(prefix=".saving-", dir=target.parent))
        try:
            original(obj, folder / target.name, *args, **kwargs)
            with suppress(FileNotFoundError):
                shutil.copymode(target, folder / target.name)
            os.replace(folder / target.name, target)
        finally:
            shutil.rmtree(folder)

    return save


def _replaceable(f: Any) -> Path | None:
    """Return the file that ``f`` leads to, unless it must be written in place."""
    if not isinstance(f, (str, os.PathLike)):
        return None
    target = Path(os.path.realpath(f))  # a link stays a link, as in a plain save
    regular = target.is_file() or not target.exists()
    return target if regular and os.access(target.parent, os.W_OK | os.X_OK) else None
