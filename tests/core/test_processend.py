"""How the end of a process is told."""

from __future__ import annotations

import pytest

from ddp_magic.core.processend import ProcessEnd


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (ProcessEnd(exit_code=0), "exited with code 0"),
        (ProcessEnd(exit_code=3), "exited with code 3"),
        (ProcessEnd(), "has gone"),
        (
            ProcessEnd(signal_name="SIGKILL"),
            "was killed by SIGKILL (the system does that when memory runs out)",
        ),
        (ProcessEnd(signal_name="SIGTERM"), "was killed by SIGTERM"),
        (
            ProcessEnd(signal_name="SIGSEGV", core_dumped=True),
            "died of SIGSEGV (compiled code crashed, core dumped)",
        ),
        (ProcessEnd(signal_name="signal 42"), "died of signal 42"),
    ],
)
def test_the_end_is_one_sentence(end: ProcessEnd, sentence: str) -> None:
    assert end.sentence == sentence


def test_the_last_lines_are_few() -> None:
    end = ProcessEnd(tail="\n".join(map(str, range(100))))
    assert end.last_lines.splitlines()[0] == "85"
    assert end.last_line == "99"
    assert ProcessEnd().last_line == ""
