"""Downloads and unpacked archives that every rank asks for: one has them, the others wait for it.

They may take long, so each keeps ranks from that same download alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from email import message_from_string
from functools import partial
from http.client import HTTPMessage
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from ddp_magic.rank.files import replaceable, written_beside
from ddp_magic.rank.journal import MADE, Journal, absolute

Act = Callable[..., Any]


def retrieve(
    journal: Journal, original: Act, url: str, filename: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Share `urllib.request.urlretrieve`; the file appears when it is complete."""
    target = replaceable(filename) if filename else None
    if target is None:
        return original(url, filename, *args, **kwargs)

    def act() -> str:
        with written_beside(target) as path:
            return str(original(url, path, *args, **kwargs)[1])

    headers = _once(journal, f"{url} -> {target}", act, str(target))
    return filename, message_from_string(headers or "", _class=HTTPMessage)


def download(
    journal: Journal, original: Act, url: str, dst: Any, *args: Any, **kwargs: Any
) -> None:
    """Share `torch.hub.download_url_to_file`, which itself writes beside."""
    target = absolute(os.path.expanduser(dst))
    act = partial(original, url, dst, *args, **kwargs)
    _once(journal, f"{url} -> {target}", act, target)


def unpack(
    journal: Journal,
    original: Act,
    filename: Any,
    extract_dir: Any = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Share `shutil.unpack_archive`; a folder that is not there yet appears when it is complete."""
    target = Path(os.path.abspath(extract_dir or os.curdir))

    def act() -> None:
        if os.path.lexists(target) or not target.parent.is_dir():
            original(filename, target, *args, **kwargs)
            return
        with written_beside(target) as path:
            path.mkdir()
            original(filename, path, *args, **kwargs)

    _once(journal, f"{absolute(filename)} unpacked to {target}", act, str(target))


def call_once(journal: Journal, original: Act, *args: Any, **kwargs: Any) -> Any:
    """Have one rank call ``original`` with these arguments; all return what it does."""
    key = f"{original.__name__} {args} {kwargs}"
    return _once(journal, key, partial(original, *args, **kwargs))


def _once(journal: Journal, key: str, act: Callable[[], Any], target: str | None = None) -> Any:
    with journal.alone(key):
        with journal.locked():
            there = target is None or os.path.lexists(target)
            if there and journal.explains(key, MADE):
                if target is not None:
                    journal.explains(target, MADE)
                return journal.results[key]
        result = act()
        with journal.locked():
            journal.note(key, MADE, result=None if result is None else str(result))
            if target is not None:
                journal.note(target, MADE)
    return result


class OnImport(MetaPathFinder):
    """Acts on a module as soon as it has been imported, before others take its functions.

    Parameters
    ----------
    name
        The module's; it may be imported already.
    act
        Called with the module.
    """

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act

    def install(self) -> None:
        """Act, now or later."""
        if module := sys.modules.get(self._name):
            self._act(module)
        else:
            sys.meta_path.insert(0, self)

    def uninstall(self) -> None:
        """Act no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what Python's own finder does, with a loader that acts when it has loaded."""
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_act(module: ModuleType) -> None:
                load(module)
                self._act(module)

            spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec
