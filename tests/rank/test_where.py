"""Whose code a rank is in, and whether it waits there."""

from __future__ import annotations

import importlib.util
import sys
import threading
import warnings
from pathlib import Path
from types import FrameType, ModuleType

import pytest
import torch

import ddp_magic.rank.frames
from ddp_magic.rank.frames import as_imported
from ddp_magic.rank.where import Standing, has_threads, outwards, place_in


@pytest.mark.parametrize(
    ("path", "is_users"),
    [
        ("/tmp/ddp_cell/1.py", True),
        ("/home/me/train.py", True),
        ("/opt/base/lib/python3.11/site-packages/some/module.py", False),  # of another environment
        ("/usr/lib/python3/dist-packages/some/module.py", False),
        ("<string>", False),
    ],
)
def test_packages_are_not_the_users_wherever_they_are(path: str, is_users: bool) -> None:
    begun, end = threading.Event(), threading.Event()
    names = {"begun": begun, "end": end}
    exec(compile("def run():\n    begun.set()\n    end.wait()\n", path, "exec"), names)
    thread = threading.Thread(target=names["run"])  # type: ignore[arg-type]
    thread.start()
    try:
        assert begun.wait(10)
        assert has_threads() == is_users
    finally:
        end.set()
        thread.join()


_STACK = "import sys\ndef reach():\n    stacks.append(sys._getframe())\n"


def _load(path: Path, module: str, source: str) -> list[list[Standing]]:
    """Import a module by a file of that path; return the stacks it has noted."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None
    assert spec.loader is not None
    loaded, noted = importlib.util.module_from_spec(spec), list[FrameType]()
    vars(loaded)["stacks"] = noted
    spec.loader.exec_module(loaded)
    if "def go" in source:
        loaded.go()
    return [[(frame, frame.f_lineno) for frame in outwards(one)] for one in noted]


def _waits_in(path: Path, module: str, source: str) -> list[str]:
    return [place_in(stack, "/none").collective for stack in _load(path, module, source)]


@pytest.mark.parametrize(
    ("module", "waits_in"),
    [
        ("torch.distributed.utils", "reach"),  # that calls compiled code
        ("torch.nn.parallel.distributed", "reach"),
        ("torch.distributed.distributed_c10d", "go"),  # the outermost is what was called
        ("torch.distributed.tensor._ops.utils", ""),
        ("torch.distributed._tools.mod_tracker", ""),
        ("torch.distributed.c10d_logger", ""),
        ("torch.functional", ""),
    ],
)
def test_which_library_waits_for_others(tmp_path: Path, module: str, waits_in: str) -> None:
    path = tmp_path / "site-packages" / "library.py"
    assert _waits_in(path, module, _STACK + "def go():\n    reach()\n") == [waits_in]


def test_what_is_being_imported_waits_for_nobody(tmp_path: Path) -> None:
    source = _STACK + "reach()\nstacks.append(sys._getframe())\n"
    path = tmp_path / "site-packages" / "library.py"
    for module in ("torch.distributed.rpc.api", "torch.distributed.distributed_c10d"):
        assert _waits_in(path, module, source) == ["", ""]


def test_a_module_of_the_users_may_wait_as_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = ModuleType("torch.distributed.distributed_c10d")
    code = compile("def barrier(note):\n    note()\n", "/x/site-packages/c10d.py", "exec")
    exec(code, vars(library))
    monkeypatch.setitem(sys.modules, "c10d_of_the_test", library)
    source = (
        "import sys\nfrom c10d_of_the_test import barrier\n"
        "barrier(lambda: stacks.append(sys._getframe(1)))\n"
    )
    assert _waits_in(tmp_path / "mine.py", "mine", source) == ["barrier"]


def test_where_a_library_is_installed_is_not_told() -> None:
    assert as_imported(torch.nn.modules.module.__file__ or "") == "torch/nn/modules/module.py"
    assert as_imported(ddp_magic.rank.frames.__file__) == "ddp_magic/rank/frames.py"
    assert as_imported(warnings.__file__ or "") == "warnings.py"
    assert as_imported("/elsewhere/module.py") == "/elsewhere/module.py"
