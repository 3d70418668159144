"""Whose code a rank is in."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch

import ddp_magic.rank.frames
from ddp_magic.rank.frames import as_imported
from ddp_magic.rank.where import has_threads


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


def test_where_a_library_is_installed_is_not_told() -> None:
    assert as_imported(torch.nn.modules.module.__file__ or "") == "torch/nn/modules/module.py"
    assert as_imported(ddp_magic.rank.frames.__file__) == "ddp_magic/rank/frames.py"
    assert as_imported(warnings.__file__ or "") == "warnings.py"
    assert as_imported("/elsewhere/module.py") == "/elsewhere/module.py"
