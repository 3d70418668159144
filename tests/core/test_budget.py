from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddp_magic.core.budget import OutputBudget


def test_text_within_the_budget_passes_unchanged() -> None:
    budget = OutputBudget("rank 0", capacity_chars=100)
    assert budget.feed("stdout", " a\n\nb", 0.0) == " a\n\nb"
    assert budget.finish() == ""


def test_a_flood_is_cut_at_a_line_and_its_end_comes_last() -> None:
    budget = OutputBudget("rank 1", capacity_chars=100, refill_chars_per_s=0, tail_lines=2)
    shown = [budget.feed("stdout", f"line {i:03}\n", i * 0.001) for i in range(1000)]
    first = "".join(shown)
    assert first.startswith("line 000\nline 001\n")
    assert first.endswith(
        "line 010\n[rank 1: more than 100 characters printed, what follows is not shown]\n"
    )
    assert budget.finish() == (
        "[rank 1: 989 lines (8,901 characters) not shown; the last of them:]\nline 998\nline 999\n"
    )
    assert budget.finish() == ""


def test_a_note_never_joins_an_unfinished_line() -> None:
    budget = OutputBudget("rank 0", capacity_chars=10)
    assert budget.feed("stdout", "loss: ", 0.0) == "loss: "
    assert budget.feed("stdout", "x" * 20, 0.0).startswith("\n[rank 0: ")


def test_a_progress_bar_that_runs_all_night_costs_one_line() -> None:
    budget = OutputBudget("rank 0", capacity_chars=200, refill_chars_per_s=0)
    for step in range(100_000):
        text = f"\r{step:>6}/100000 [00:00<00:00]"
        assert budget.feed("stderr", text, step) == text
    assert budget.feed("stdout", "y" * 100, 1e6) == "y" * 100


def test_a_bar_that_ends_in_a_carriage_return_costs_one_line() -> None:
    budget = OutputBudget("rank 0", capacity_chars=50, refill_chars_per_s=0)
    for step in range(1000):
        text = f"step {step}\r"
        assert budget.feed("stdout", text, step) == text


def test_bars_that_end_cost_a_line_each() -> None:
    budget = OutputBudget("rank 0", capacity_chars=35, refill_chars_per_s=0)
    for _ in range(3):
        assert budget.feed("stderr", "\r 10%\r 50%\r100%\r\n" * 2, 0.0).startswith("\r")
    assert "not shown" in budget.feed("stderr", "\r 50%\r100%\n\r50%\n", 0.0)


def test_the_budget_grows_back_and_text_passes_again() -> None:
    budget = OutputBudget("rank 0", capacity_chars=100, refill_chars_per_s=1.0)
    budget.feed("stdout", "x" * 99 + "\n", 0.0)
    assert "not shown" in budget.feed("stdout", "lost\n", 0.0)
    assert budget.feed("stdout", "lost too\n", 1.0) == ""
    assert budget.feed("stdout", "back\n", 60.0) == "back\n"
    assert "2 lines (14 characters)" in budget.finish()


def test_a_giant_line_is_dropped_and_little_of_it_kept() -> None:
    budget = OutputBudget("rank 0", capacity_chars=1000)
    budget.feed("stdout", "x" * 10_000_000, 0.0)
    assert len(budget.finish()) < 100_000


@given(st.lists(st.text("a\n\r", max_size=12), max_size=30), st.integers(0, 60))
def test_what_is_kept_on_the_screen_stays_within_the_capacity(texts: list[str], size: int) -> None:
    budget = OutputBudget("rank 0", capacity_chars=size, refill_chars_per_s=0)
    passed = "".join(shown for text in texts if (shown := budget.feed("stdout", text, 0.0)) == text)
    lines = passed.split("\n")
    kept = sum(max(map(len, line.split("\r"))) for line in lines) + len(lines) - 1
    assert kept <= size
