"""What the doctor has found, as HTML."""

from __future__ import annotations

from ddp_magic.core.doctor.finding import Diagnosis, degraded, ok, wrong
from ddp_magic.core.doctor.frontend import Frontend, check_widgets
from ddp_magic.ui.doctor import DoctorView

_PAGE = Frontend(has_kernel=True, has_page=True)
_FOUND = Diagnosis(
    (
        ok("Python", "3.12"),
        degraded("/dev/shm", "64 MiB", "docker run --shm-size=8g"),
        wrong("GPUs", "<none>", "a & b"),
        check_widgets(_PAGE),
    )
)


def test_each_verdict_is_a_word_and_texts_are_escaped() -> None:
    html = DoctorView(_FOUND, _PAGE)._repr_html_()
    assert all(f">{word}</span>" in html for word in ("ok", "degraded", "wrong"))
    assert "&lt;none&gt;" in html
    assert "→ a &amp; b" in html
    assert "<style" not in html  # an untrusted notebook keeps none
    assert "var(--" not in html


def test_problems_and_text_are_those_of_the_diagnosis() -> None:
    view = DoctorView(_FOUND, _PAGE)
    assert view.problems == _FOUND.problems
    assert repr(view) == str(_FOUND)
