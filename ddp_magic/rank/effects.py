"""Effects on files that every rank of a cell is about to have: whoever comes first has them.

A cell written for one process runs on every rank at nearly the same time. Where each of them makes
a directory, removes a file or downloads a dataset, one succeeds; for the others it is done.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import threading
import urllib.request
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ddp_magic.rank.downloads import OnImport, call_once, download, retrieve, unpack
from ddp_magic.rank.journal import GONE, MADE, Journal, absolute, collectives
from ddp_magic.rank.patching import Patches

Act = Callable[..., Any]


class SharedEffects:
    """Lets an effect be taken as done that another rank has had in this cell, and this one not yet.

    What one rank does twice by itself fails as ever. Outside of cells, and in processes forked
    from the rank, nothing is changed.

    Parameters
    ----------
    folder
        Private folder of the session, the same for all ranks on this host.
    rank
        This rank.
    world_size
        How many there are; a rank alone races with nobody.
    """

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self._folder = folder
        self._rank = rank
        self._alone = world_size == 1
        self._journal: Journal | None = None
        self._cell: tuple[int, int] | None = None  # its number, and the collectives before it
        self._opening = threading.Lock()
        self._pid = 0
        self._inside = threading.local()
        self._patches = Patches()
        self._torchvision = OnImport("torchvision.datasets.utils", self._share_helpers)

    def install(self) -> None:
        """Replace the functions."""
        for module, name, effect in _EFFECTS:
            self._share(module, name, effect)
        # Python 3.10's pathlib took the functions as it was imported.
        if accessor := getattr(pathlib, "_NormalAccessor", None):
            for module, name, _ in _EFFECTS:
                if module is os and name in vars(accessor):
                    self._set(accessor, name, staticmethod(getattr(os, name)))
        self._torchvision.install()

    def uninstall(self) -> None:
        """Put the functions back."""
        self.end_cell()
        self._patches.undo()
        self._torchvision.uninstall()

    def begin_cell(self, number: int) -> None:
        """Begin a cell.

        Parameters
        ----------
        number
            The same on all ranks, and of no other cell.
        """
        self.end_cell()
        self._pid = os.getpid()
        self._cell = None if self._alone else (number, collectives())

    def end_cell(self) -> None:
        """End the cell; its journal stays until the next begins, since other ranks may need it."""
        self._journal = self._cell = None

    def _share(self, module: ModuleType, name: str, effect: Act) -> None:
        def make(original: Act) -> Act:
            @wraps(original)
            def shared(*args: Any, **kwargs: Any) -> Any:
                journal = self._active()
                if journal is None:
                    return original(*args, **kwargs)
                try:
                    self._inside.value = True  # what the effect consists of is not looked at
                    return effect(journal, original, *args, **kwargs)
                finally:
                    self._inside.value = False

            shared.__module__ = module.__name__  # `os`, not `posix`: pickle looks there
            return shared

        self._patches.replace(module, name, make)

    def _active(self) -> Journal | None:
        """Return the cell's journal, opened at its first effect."""
        if getattr(self._inside, "value", False) or os.getpid() != self._pid:
            return None
        with self._opening:
            if self._journal is None and self._cell is not None:
                self._inside.value = True  # what others left is removed
                try:
                    self._journal = Journal(self._folder, *self._cell, self._rank)
                except OSError:
                    self._cell = None  # without a journal effects are plain
                finally:
                    self._inside.value = False
            return self._journal

    def _share_helpers(self, utils: ModuleType) -> None:
        """Share torchvision's helpers, also in modules that have imported them by name."""
        for name in ("download_url", "extract_archive", "download_and_extract_archive"):
            original = vars(utils)[name]
            self._share(utils, name, call_once)
            for place, module in list(sys.modules.items()):
                if place.startswith("torchvision.") and vars(module).get(name) is original:
                    self._set(module, name, vars(utils)[name])

    def _set(self, owner: Any, name: str, value: Any) -> None:
        self._patches.replace(owner, name, lambda _: value)


def _make(journal: Journal, original: Act, path: Any, *args: Any, **kwargs: Any) -> Any:
    key = absolute(path, kwargs)
    if key is None:
        return original(path, *args, **kwargs)
    with journal.locked():
        try:
            result = original(path, *args, **kwargs)
        except FileExistsError:
            if not journal.explains(key, MADE):
                raise
            return None
        journal.note(key, MADE, fresh=True)
    return result


def _link(journal: Journal, original: Act, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
    return _make(journal, partial(original, src), dst, *args, **kwargs)


def _remove(journal: Journal, original: Act, path: Any, *args: Any, **kwargs: Any) -> Any:
    key = absolute(path, kwargs)
    if key is None:
        return original(path, *args, **kwargs)
    with journal.locked():
        there = os.path.lexists(key)
        if journal.trace(key).is_of_others() or (not there and journal.explains(key, GONE)):
            return None
        result = original(path, *args, **kwargs)
        if there and not os.path.lexists(key):
            journal.note(key, GONE)
    return result


def _rename(journal: Journal, original: Act, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
    source, target = absolute(src, kwargs), absolute(dst, kwargs)
    if source is None or target is None:
        return original(src, dst, *args, **kwargs)
    with journal.locked():
        if _was_renamed(journal, source, target):
            journal.explains(target, MADE)
            return None
        result = original(src, dst, *args, **kwargs)
        journal.note(source, GONE)
        place = absolute(result) or target  # `shutil.move` into a directory tells where
        journal.note(place, MADE, result=source)
    return result


def _was_renamed(journal: Journal, source: str, target: str) -> bool:
    """Tell whether another rank has moved ``source`` to ``target`` for this one."""
    if journal.trace(source).is_of_others():
        return True
    if not os.path.lexists(source):
        inside = os.path.join(target, os.path.basename(source))
        there = source in (journal.results.get(target), journal.results.get(inside))
        return there and journal.explains(source, GONE)  # if elsewhere, then to claim it
    # This rank has made the source again; a directory does not take another one's place.
    made = journal.trace(target).has_ahead(MADE) and os.path.isdir(target)
    return made and journal.results[target] == source


def _move(journal: Journal, original: Act, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
    result = _rename(journal, original, src, dst, *args, **kwargs)
    if result is not None:
        return result
    inside = os.path.join(dst, os.path.basename(os.fspath(src).rstrip(os.sep)))
    return inside if os.path.lexists(inside) else dst


_EFFECTS: tuple[tuple[ModuleType, str, Act], ...] = (
    (os, "mkdir", _make),
    (os, "symlink", _link),
    (os, "remove", _remove),
    (os, "unlink", _remove),
    (os, "rmdir", _remove),
    (shutil, "rmtree", _remove),
    (os, "rename", _rename),
    (os, "replace", _rename),
    (shutil, "move", _move),
    (urllib.request, "urlretrieve", retrieve),
    (torch.hub, "download_url_to_file", download),
    (shutil, "unpack_archive", unpack),
)
