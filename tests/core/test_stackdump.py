"""Where a rank is that can only be asked by a signal."""

from __future__ import annotations

from ddp_magic.core.stackdump import read_place

CODE = "%%ddp\nimport re\nre.match('(a+)+b', 'a' * 40)\n"
HEADING = "Current thread 0x1 (most recent call first):\n"
OLD = f'{HEADING}  File "/tmp/ddp_cell/1.py", line 2 in <module>\n'


def _dump(*frames: str) -> str:
    return OLD + HEADING + "\n".join(frames)


LIBRARY = '  File "/usr/lib/python3.11/re/__init__.py", line 166 in match'
CELL = '  File "/tmp/ddp_cell/2.py", line 3 in <module>'


def test_the_cells_own_line_is_found_below_a_librarys() -> None:
    place = read_place(_dump(LIBRARY, CELL), CODE)
    assert (place.line, place.source, place.file) == (3, "re.match('(a+)+b', 'a' * 40)", "")


def test_a_file_of_the_users_is_named() -> None:
    place = read_place(_dump(LIBRARY, '  File "/home/me/train.py", line 9 in f', CELL), CODE)
    assert (place.line, place.file) == (9, "train.py")


def test_what_was_not_written_is_not_known() -> None:
    assert read_place("", CODE).line is None
    assert read_place(_dump(LIBRARY), CODE).line is None
