"""Who shows the cells, and what they can do."""

from __future__ import annotations

import pytest

from ddp_magic.core.doctor.finding import Verdict
from ddp_magic.core.doctor.frontend import (
    WIDGETS,
    Frontend,
    check_input,
    check_widgets,
    widgets_answered,
)


@pytest.mark.parametrize(
    ("frontend", "verdict", "text"),
    [
        (Frontend(has_kernel=False, has_page=False), Verdict.OK, "a terminal"),
        (Frontend(has_kernel=True, has_page=False), Verdict.OK, "curves are pictures"),
        (Frontend(has_kernel=True, has_page=True), Verdict.OK, "the page is asked"),
        (
            Frontend(has_kernel=True, has_page=True, widget_error="No module named 'anywidget'"),
            Verdict.DEGRADED,
            "No module named 'anywidget'",
        ),
    ],
)
def test_widgets(frontend: Frontend, verdict: Verdict, text: str) -> None:
    finding = check_widgets(frontend)
    assert finding.verdict is verdict
    assert text in finding.text
    assert bool(finding.fix) is (verdict is not Verdict.OK)


def test_the_answer_of_the_page_takes_the_place_of_the_question() -> None:
    assert widgets_answered().check == WIDGETS
    assert widgets_answered().verdict is Verdict.OK


def test_input() -> None:
    assert check_input(Frontend(True, True)).verdict is Verdict.OK
    finding = check_input(Frontend(True, False, no_input="this front end takes no input"))
    assert finding.verdict is Verdict.DEGRADED
    assert "this front end takes no input" in finding.text
