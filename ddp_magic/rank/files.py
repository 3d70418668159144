"""Files that all ranks may save to one path: readers never meet half a file."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddp_magic.rank.patching import Patches

Save = Callable[..., None]


class AtomicSave:
    """Lets `torch.save` and numpy's `save` write beside the path and move the finished file there.

    Of ranks that save to one path the last to finish wins. A save that fails leaves the former
    file as it was. File-like objects, devices and pipes are written to as ever.
    """

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self) -> None:
        """Replace the functions that save."""
        self._patches.replace(torch, "save", _atomic)
        self._patches.replace(torch.serialization, "save", lambda _: torch.save)
        self._patches.replace(np, "save", _atomic_array(".npy"))
        self._patches.replace(np, "savez", _atomic_array(".npz"))
        self._patches.replace(np, "savez_compressed", _atomic_array(".npz"))

    def uninstall(self) -> None:
        """Put them back."""
        self._patches.undo()


def _atomic(original: Save) -> Save:
    @wraps(original)
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        target = replaceable(f)
        if target is None:
            return original(obj, f, *args, **kwargs)
        with written_beside(target) as path:
            original(obj, path, *args, **kwargs)

    return save


def _atomic_array(suffix: str) -> Callable[[Save], Save]:
    """Return what makes a function of numpy's atomic that appends ``suffix`` to a bare name."""

    def make(original: Save) -> Save:
        @wraps(original)
        def save(file: Any, *args: Any, **kwargs: Any) -> None:
            target = replaceable(_with_suffix(file, suffix))
            if target is None:
                return original(file, *args, **kwargs)
            with written_beside(target) as path:
                original(path, *args, **kwargs)

        return save

    return make


def _with_suffix(file: Any, suffix: str) -> Any:
    if not isinstance(file, (str, os.PathLike)):
        return file
    name = os.fspath(file)
    return name if not isinstance(name, str) or name.endswith(suffix) else name + suffix


@contextmanager
def written_beside(target: Path) -> Iterator[Path]:
    """Give a path to write to; what has been written there is moved to ``target`` at the end."""
    # The archive inside is named after the file: keep the name, in a folder of its own.
    folder = Path(tempfile.mkdtemp(prefix=".saving-", dir=target.parent))
    try:
        yield folder / target.name
        with suppress(FileNotFoundError):
            shutil.copymode(target, folder / target.name)
        os.replace(folder / target.name, target)
    finally:
        shutil.rmtree(folder)


def replaceable(f: Any) -> Path | None:
    """Return the file that ``f`` leads to, unless it must be written in place."""
    if not isinstance(f, (str, os.PathLike)):
        return None
    target = Path(os.path.realpath(f))  # a link stays a link, as in a plain save
    in_place = not _is_regular(target) or not os.access(target.parent, os.W_OK | os.X_OK)
    return None if in_place else target


def _is_regular(target: Path) -> bool:
    """Tell whether a path is a file's or nothing's, in one look: another rank may just make it."""
    try:
        return stat.S_ISREG(target.stat().st_mode)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
