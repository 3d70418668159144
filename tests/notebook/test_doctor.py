"""`%ddp doctor` in a notebook."""

from __future__ import annotations

import time

from tests.notebook.conftest import Notebook

_LONGEST_S = 3.0 + 2.0  # the tests beside this one use the processors, too


def test_says_how_it_is_here_and_starts_no_ranks(cold_notebook: Notebook) -> None:
    began_s = time.monotonic()
    output = cold_notebook.run("%ddp doctor")
    assert time.monotonic() - began_s < _LONGEST_S
    assert output.status == "ok"
    (text,) = output.data("text/plain")
    (html,) = output.data("text/html")
    assert text.startswith("ddp doctor: ")
    assert "wrong" not in [line.split()[0] for line in text.splitlines()[1:]]
    assert "no page shows this cell" in text
    assert "this front end takes no input" in text
    assert all(f">{word}</span>" in html for word in ("ok", "degraded"))
    state = cold_notebook.run("%ddp status").data("text/plain")
    assert state == ["no ranks have been started"]


def test_what_it_finds_is_a_value_and_torch_stays_out(notebook: Notebook) -> None:
    output = notebook.run(
        "import sys\nfound = %ddp doctor\n"
        "print([(one.check, one.verdict.value) for one in found.problems], 'torch' in sys.modules)"
    )
    assert output.status == "ok"
    assert output.text().startswith("[")
    assert "('input', 'degraded')" in output.text()
    assert output.text().endswith("False\n")
    assert not output.data("text/plain")  # it was not asked to be shown


def test_help(notebook: Notebook) -> None:
    assert "starts no ranks" in notebook.run("%ddp doctor -h").text()
