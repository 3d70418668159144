"""Findings together: in which order, in which words."""

from __future__ import annotations

from ddp_magic.core.doctor.finding import Diagnosis, degraded, ok, wrong

_FOUND = Diagnosis(
    (
        ok("Python", "3.12"),
        degraded("/dev/shm", "64 MiB", "make it larger"),
        wrong("torch", "is not installed", "install it"),
        degraded("/dev/shm", "again"),
    ),
    took_s=0.31,
)


def test_problems_are_those_that_are_not_ok_the_worst_first() -> None:
    assert [one.check for one in _FOUND.problems] == ["torch", "/dev/shm", "/dev/shm"]
    assert str(_FOUND.problems[0]) == "torch: is not installed (install it)"


def test_the_text_says_each_verdict_in_words_and_the_fix_below() -> None:
    assert str(_FOUND).splitlines() == [
        "ddp doctor: wrong: torch; degraded: /dev/shm (4 checks, 0.3 s)",
        "ok        Python    3.12",
        "degraded  /dev/shm  64 MiB",
        "                    -> make it larger",
        "wrong     torch     is not installed",
        "                    -> install it",
        "degraded  /dev/shm  again",
    ]


def test_where_nothing_is_wrong_it_says_so() -> None:
    fine = Diagnosis((ok("Python", "3.12"),))
    assert fine.problems == ()
    assert fine.headline == "ddp doctor: nothing is wrong (1 check, 0.0 s)"


def test_a_finding_that_comes_later_takes_its_place() -> None:
    changed = _FOUND.changed(ok("torch", "2.9"))
    assert [one.check for one in changed.problems] == ["/dev/shm", "/dev/shm"]
    assert [one.check for one in changed.findings] == [one.check for one in _FOUND.findings]
