"""The report of a crash, cut to the user's part."""

from __future__ import annotations

import pytest

from ddp_magic.core.crash import CrashTrimmer

_REPORT = """before
Fatal Python error: Segmentation fault

Current thread 0x00007fe45147cb80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/tmp/ddp_cell/1617648628.py", line 4 in <module>
  File "/lib/IPython/core/interactiveshell.py", line 3823 in run_code
  File "<string>", line 1 in <module>

Extension modules: psutil._psutil_linux, torch._C (total: 2)
after
"""
_TRIMMED = """before
Fatal Python error: Segmentation fault

Current thread 0x00007fe45147cb80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  the cell, line 4 in <module>

after
"""


@pytest.mark.parametrize("size", [10_000, 100, 30])
def test_only_the_users_frames_are_left_however_the_text_comes(size: int) -> None:
    trimmer = CrashTrimmer()
    pieces = [_REPORT[at : at + size] for at in range(0, len(_REPORT), size)]
    assert "".join(map(trimmer.feed, pieces)) == _TRIMMED


def test_other_text_is_left_alone() -> None:
    trimmer = CrashTrimmer()
    for text in ('  File "/x/ddp_cell/1.py", line 3\n', "Extension modules: mine", "\r 3%"):
        assert trimmer.feed(text) == text
