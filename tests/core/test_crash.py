"""The report of a crash, cut to the user's part."""

from __future__ import annotations

from ddp_magic.core.crash import trim_crash

_REPORT = """Fatal Python error: Segmentation fault

Current thread 0x00007fe45147cb80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/tmp/ddp_cell/1617648628.py", line 4 in <module>
  File "/lib/IPython/core/interactiveshell.py", line 3823 in run_code
  File "<string>", line 1 in <module>

Extension modules: psutil._psutil_linux, torch._C (total: 2)
after
"""


def test_only_the_users_frames_are_left() -> None:
    assert trim_crash(_REPORT) == (
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x00007fe45147cb80 (most recent call first):\n"
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
        "  the cell, line 4 in <module>\n\nafter\n"
    )


def test_other_text_is_left_alone() -> None:
    text = '  File "/x/ddp_cell/1.py", line 3\nExtension modules: mine\n'
    assert trim_crash(text) == text
