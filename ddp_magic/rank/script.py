"""A script run on this rank as a program of its own would run: ``%ddp run train.py --epochs 3``."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_magic.errors import UsageError

_PREFIXES = {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix}
_INSTALLED = tuple(os.path.join(path, "") for path in _PREFIXES)
_MAIN = ("__main__", "__mp_main__")  # the latter is what spawned processes call it
_imported: set[str] = set()  # by programs that have run in this process
_OURS = __name__.partition(".")[0]

Transform = Callable[[ast.Module], ast.Module]


@dataclass(frozen=True)
class Program:
    """What is to run as ``__main__``.

    Attributes
    ----------
    path
        The file.
    source
        Its text.
    folder
        Where its own modules are found.
    spec
        Of a module that is run with ``-m``; None for a script.
    """

    path: str
    source: bytes
    folder: str
    spec: importlib.machinery.ModuleSpec | None = None


def run_program(
    name: str,
    args: Sequence[str],
    namespace: dict[str, Any],
    *,
    path: str = "",
    is_module: bool = False,
    transform: Transform = lambda tree: tree,
) -> None:
    """Run a script or module as ``__main__``, and leave its globals in a namespace.

    Parameters
    ----------
    name
        The script as it was typed, or the dotted name of a module.
    args
        What follows in ``sys.argv``.
    namespace
        Gets the program's globals, also if it fails.
    path
        Where the script is.
    is_module
        Whether ``name`` is a module's, as after ``python -m``.
    transform
        Changes its syntax tree before it is compiled.

    Raises
    ------
    UsageError
        There is no such script or module.
    """
    program = _find_module(name) if is_module else _find_script(path or name)
    _forget_modules_of(program)
    imported = set(sys.modules)
    tree = transform(ast.parse(program.source, program.path))
    code = compile(tree, program.path, "exec", dont_inherit=True)  # no `annotations` from here
    main = types.ModuleType("__main__")
    main.__file__, main.__spec__ = program.path, program.spec
    main.__package__ = program.spec.parent if program.spec else None
    argv = [program.path if is_module else name, *args]
    try:
        with _being_main(main, argv), _surroundings(program.folder):
            exec(code, vars(main))
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    finally:
        _imported.update(set(sys.modules) - imported)
        made = {key: value for key, value in vars(main).items() if not key.startswith("__")}
        namespace.update(made)


@contextmanager
def _being_main(main: types.ModuleType, argv: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, argv
    former = {name: sys.modules.get(name) for name in _MAIN}
    sys.modules.update(dict.fromkeys(_MAIN, main))
    try:
        yield
    finally:
        for name, module in former.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
        sys.argv = before


@contextmanager
def _surroundings(folder: str) -> Iterator[None]:
    """Find modules in the program's folder first; undo what it changes of path and directory."""
    path, directory = list(sys.path), os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path[:] = path
        os.chdir(directory)


def _find_script(path: str) -> Program:
    try:
        file = Path(path).expanduser().resolve(strict=True)
        return Program(str(file), file.read_bytes(), str(file.parent))
    except OSError as error:
        raise UsageError(f"%ddp run {path}: {error.strerror} ({os.getcwd()}).") from None


def _find_module(name: str) -> Program:
    importlib.invalidate_caches()
    with _surroundings(os.getcwd()):
        return _find_on_path(name)


def _find_on_path(name: str) -> Program:
    spec = _spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = _spec(name)
    loader = spec.loader if spec else None
    if spec is None or spec.origin is None or not isinstance(loader, _HasSource):
        raise UsageError(f"%ddp run -m {name}: no such module on this rank ({os.getcwd()}).")
    source = loader.get_data(spec.origin)
    depth = name.count(".") + 1
    return Program(spec.origin, source, str(Path(spec.origin).parents[depth - 1]), spec)


_HasSource = importlib.machinery.SourceFileLoader


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


def _forget_modules_of(program: Program) -> None:
    """Have a program import its own modules as they are now, as a new process would.

    Those of its folder, and what former programs have imported: names may be the same.
    """
    below = os.path.join(program.folder, "")
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        own = (path.startswith(below) or name in _imported) and path and _is_users(path)
        if own and name.partition(".")[0] != _OURS:
            del sys.modules[name]


def _is_users(path: str) -> bool:
    return not path.startswith(_INSTALLED)
