"""Whose code a rank is in."""

from __future__ import annotations

import threading

import pytest

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
