from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_magic.core.output import Chunk, Grouper

Printed = tuple[int, str]


def show(*printed: Printed, ranks: int = 4, mode: str = "grouped") -> str:
    """Return what stands on the screen after a short cell printed all this at once."""
    grouper = Grouper(range(ranks), mode)
    chunks = [c for rank, text in printed for c in grouper.feed(rank, "stdout", text, 0.0)]
    return joined([*chunks, *grouper.finish()])


def joined(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


# grouped: the lead rank


def test_the_lead_ranks_text_passes_at_once_and_exactly() -> None:
    grouper = Grouper([2, 0, 1])
    for text in ["  a", "", "\n\n", "\x1b[31mred\x1b[0m\r\n", "\r 50%", "\r100%\n", "end  "]:
        expected = [Chunk("stderr", text, 0)] if text else []
        assert grouper.feed(0, "stderr", text, 0.0) == expected
    assert grouper.finish() == []


def test_the_lowest_of_a_subset_leads() -> None:
    grouper = Grouper([3, 1])
    assert grouper.feed(1, "stdout", "x", 0.0) == [Chunk("stdout", "x", 1)]


# grouped: equal lines


def test_equal_lines_are_shown_once() -> None:
    assert show((0, "a\nb\n"), (1, "a\n"), (2, "a\nb"), (1, "b\n"), (2, "\n")) == "a\nb\n"


def test_a_rank_that_is_ahead_is_waited_for() -> None:
    grouper = Grouper(range(2))
    assert grouper.feed(1, "stdout", "a\nb\n", 0.0) == []
    assert grouper.tick(0.9) == []
    assert joined(grouper.feed(0, "stdout", "a\n", 0.95)) == "a\n"
    assert grouper.tick(1.2) == [], "the lead gets on, so b may still come"
    assert joined(grouper.feed(0, "stdout", "b\n", 1.3)) == "b\n"
    assert [*grouper.tick(9.0), *grouper.finish()] == []


def test_text_without_a_newline_is_equal_too() -> None:
    assert show((0, "a"), (1, "a"), (2, "a")) == "a"


def test_windows_newlines_are_only_newlines() -> None:
    assert show((0, "a\nb\n"), (1, "a\r"), (1, "\nb\r\n")) == "a\nb\n"


def test_streams_are_compared_apart() -> None:
    grouper = Grouper(range(2))
    grouper.feed(0, "stdout", "x\n", 0.0)
    grouper.feed(1, "stderr", "x\n", 0.0)
    assert grouper.finish() == [Chunk("stderr", "[rank 1] x\n", 1)]


# grouped: different lines


def test_a_different_line_is_marked() -> None:
    assert show((0, "loss 1\n"), (1, "loss 1\n"), (2, "loss 2\n")) == "loss 1\n[rank 2] loss 2\n"


def test_ranks_that_differ_alike_share_a_line() -> None:
    shown = show((0, "main\n"), (1, "other\n"), (2, "other\n"), (3, "other\n"))
    assert shown == "main\n[rank 1-3] other\n"
    assert show((0, "a\n"), (1, "b\n"), (2, "c\n"), (3, "b\n")) == (
        "a\n[rank 1, 3] b\n[rank 2] c\n"
    )


def test_a_chunk_names_its_rank_only_if_it_has_one() -> None:
    grouper = Grouper(range(4))
    for rank, text in enumerate(["", "x\n", "x\n", "y\n"]):
        grouper.feed(rank, "stdout", text, 0.0)
    assert [chunk.rank for chunk in grouper.finish()] == [None, 3]


def test_text_is_not_stripped() -> None:
    assert show((0, ""), (1, "  x \t\n\n")) == "[rank 1]   x \t\n[rank 1] \n"


def test_a_block_of_one_rank_stays_together() -> None:
    assert show((0, "0\n"), (1, "a\nb\n"), (2, "c\nd\n")) == (
        "0\n[rank 1] a\n[rank 1] b\n[rank 2] c\n[rank 2] d\n"
    )


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("at", [0, 3, 10])
def test_one_extra_line_makes_no_other_differ(extra: int, at: int) -> None:
    lines = [f"epoch {i}" for i in range(10)]
    longer = [*lines[:at], "extra", *lines[at:]]
    texts = ["\n".join(each) + "\n" for each in (lines, lines)]
    texts[extra] = "\n".join(longer) + "\n"
    expected = texts[0] + ("[rank 1] extra\n" if extra else "")
    assert show((0, texts[0]), (1, texts[1]), ranks=2) == expected


def test_a_long_block_of_the_lead_alone_makes_no_other_differ() -> None:
    summary = "".join(f"layer {i}\n" for i in range(400))
    assert show((0, summary + "a\nb\n"), (1, "a\nb\n")) == summary + "a\nb\n"


def test_a_line_the_lead_prints_late_is_shown_after_patience() -> None:
    grouper = Grouper(range(2))
    assert grouper.feed(1, "stdout", "stuck?\n", 5.0) == []
    assert grouper.tick(5.9) == []
    assert joined(grouper.tick(6.0)) == "[rank 1] stuck?\n"
    assert joined(grouper.feed(0, "stdout", "stuck?\nb\n", 7.0)) == "stuck?\nb\n"
    grouper.feed(1, "stdout", "b\n", 7.0)
    assert grouper.finish() == []


def test_once_the_lead_has_got_that_far_a_line_settles_soon() -> None:
    grouper = Grouper(range(2))
    grouper.feed(0, "stdout", "loss 1\n", 0.0)
    assert grouper.feed(1, "stdout", "loss 2\n", 0.1) == []
    assert joined(grouper.tick(0.5)) == "[rank 1] loss 2\n"


# grouped: unfinished lines of the lead


def test_nothing_is_merged_into_an_unfinished_line() -> None:
    grouper = Grouper(range(2))
    grouper.feed(0, "stdout", "Epoch 1 ... ", 0.0)
    grouper.feed(1, "stdout", "other\n", 0.0)
    assert grouper.tick(100.0) == []
    assert joined(grouper.feed(0, "stdout", "done\n", 101.0)) == "done\n[rank 1] other\n"


def test_at_the_end_the_missing_newline_is_put_in() -> None:
    assert show((0, "a"), (1, "b")) == "a\n[rank 1] b\n"


def test_a_line_may_stand_between_two_states_of_the_leads_bar() -> None:
    grouper = Grouper(range(2))
    grouper.feed(0, "stderr", "\r 10%|#    |", 0.0)
    grouper.feed(1, "stderr", "careful\n", 0.0)
    assert joined(grouper.tick(1.1)) == "\n[rank 1] careful\n"
    assert joined(grouper.feed(0, "stderr", "\r100%|#####|\n", 2.0)) == "\r100%|#####|\n"


def test_a_bar_that_was_erased_leaves_no_empty_line() -> None:
    assert show((0, "\r 10%\r    \r"), (1, "x\n")) == "\r 10%\r    \r[rank 1] x\n"


# grouped: progress bars of other ranks


@pytest.mark.parametrize(
    "bar",
    [
        "\r  0%|  | 0/2 [00:00<?, ?it/s]\r100%|##| 2/2 [00:00<00:00, 9it/s]\n",
        "\r  0%\n\r 50%\x1b[A\r100%\n\r      \r\x1b[A",
        "step 1\rstep 2\r",
    ],
)
def test_bars_come_from_the_lead_alone(bar: str) -> None:
    assert show((0, "a\n"), (1, bar), (1, "a\n"), (2, "b\n")) == "a\n[rank 2] b\n"


@pytest.mark.parametrize("bar", ["\r 5%\r      \r", "step 1\rstep 2\r"])
def test_text_after_a_bar_that_is_gone_is_a_line(bar: str) -> None:
    assert show((0, bar + "done\n"), (1, bar + "done\n")) == bar + "done\n"
    assert show((0, "a\n"), (1, bar + "done\n")) == "a\n[rank 1] done\n"


def test_a_bar_without_end_takes_no_memory() -> None:
    grouper = Grouper(range(2))
    for step in range(20_000):
        for rank in range(2):
            grouper.feed(rank, "stderr", f"\r{step}/20000 " + "#" * 50, step)
    held = grouper._streams["stderr"]._splitters  # type: ignore[attr-defined]
    assert all(len(splitter.rest) < 500 for splitter in held.values())


# all and rank0


def test_all_marks_every_complete_line() -> None:
    grouper = Grouper(range(2), "all")
    assert grouper.feed(1, "stdout", "a\nb", 0.0) == [Chunk("stdout", "[rank 1] a\n", 1)]
    assert grouper.feed(0, "stdout", " a\n", 0.0) == [Chunk("stdout", "[rank 0]  a\n", 0)]
    assert grouper.tick(9.0) == []
    assert grouper.finish() == [Chunk("stdout", "[rank 1] b\n", 1)]


@pytest.mark.parametrize("bar", ["\r 50%\r100%\n", " 50%\r100%\r", "\r 50%\r100%\r\n"])
def test_all_shows_the_last_state_of_a_bar(bar: str) -> None:
    assert show((1, bar), mode="all") == "[rank 1] 100%\n"


def test_all_shows_nothing_of_an_erased_bar() -> None:
    assert show((1, "\r 50%\r    \r\n"), (1, "a\r\n"), mode="all") == "[rank 1] a\n"


def test_rank0_is_the_lead_alone() -> None:
    assert show((1, "b\n"), (0, "a"), (2, "c"), mode="rank0") == "a"


# floods


def test_a_flood_of_one_rank_is_not_held_for_ever() -> None:
    grouper = Grouper(range(2))
    shown = 0
    for _ in range(300):
        text = "".join(f"line {i}\n" for i in range(1000))
        shown += joined(grouper.feed(1, "stdout", text, 0.0)).count("\n")
    assert shown >= 250_000 - 1000
    assert shown + joined(grouper.finish()).count("\n") == 300_000


def test_the_leads_flood_is_not_kept() -> None:
    grouper = Grouper(range(2))
    for number in range(300):
        grouper.feed(0, "stdout", "".join(f"{number} {i}\n" for i in range(1000)), 0.0)
    log = grouper._streams["stdout"]._log  # type: ignore[attr-defined]
    assert log.end == 300_000
    assert log.end - log.start <= 50_000
    grouper.feed(1, "stdout", "299 998\nother\n", 0.0)
    grouper.feed(0, "stdout", "x\n" * 100_000, 0.0)
    assert "other" in joined(grouper.finish())


def test_a_line_without_end_is_not_held_for_ever() -> None:
    grouper = Grouper(range(2))
    for _ in range(30):
        grouper.feed(1, "stdout", "." * 100_000, 0.0)
    assert joined(grouper.tick(2.0)).count("\n") == 2


# any text, in any pieces


texts = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "a b\n"]), max_size=12).map("".join)


@given(texts, texts, texts, st.data())
def test_exactly_what_the_lead_lacks_is_shown(
    lead: str, one: str, two: str, data: st.DataObject
) -> None:
    grouper = Grouper(range(3))
    rest = [lead, one, two]
    chunks: list[Chunk] = []
    while any(rest):
        rank = data.draw(st.sampled_from([r for r in range(3) if rest[r]]))
        size = data.draw(st.integers(1, len(rest[rank])))
        chunks += grouper.feed(rank, "stdout", rest[rank][:size], 0.0)
        rest[rank] = rest[rank][size:]
    chunks += grouper.finish()

    assert "".join(chunk.text for chunk in chunks if chunk.rank == 0) == lead
    for rank, text in ((1, one), (2, two)):
        expected = Counter(text.split("\n")[:-1]) - Counter(lead.split("\n")[:-1])
        assert marked(chunks, rank) == expected


def marked(chunks: Sequence[Chunk], rank: int) -> Counter[str]:
    """Return the lines that are shown as this rank's."""
    found: Counter[str] = Counter()
    labels = {1: ("[rank 1] ", "[rank 1-2] "), 2: ("[rank 2] ", "[rank 1-2] ")}[rank]
    for line in joined(chunks).split("\n"):
        for label in labels:
            if line.startswith(label):
                found[line.removeprefix(label)] += 1
    return found


pieces = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["stdout", "stderr"]),
    st.text("ab\n\r \x1b", max_size=8),
    st.floats(0, 2),
)


@given(st.lists(pieces, max_size=40), st.sampled_from(["grouped", "all", "rank0"]))
def test_the_leads_text_is_never_touched(
    printed: list[tuple[int, str, str, float]], mode: str
) -> None:
    grouper = Grouper(range(3), mode)
    now_s = 0.0
    chunks: list[Chunk] = []
    for rank, stream, text, wait_s in printed:
        now_s += wait_s
        chunks += [*grouper.feed(rank, stream, text, now_s), *grouper.tick(now_s)]
    chunks += grouper.finish()
    for stream in ("stdout", "stderr"):
        lead = "".join(text for rank, name, text, _ in printed if (rank, name) == (0, stream))
        own = "".join(c.text for c in chunks if (c.stream, c.rank) == (stream, 0))
        assert mode == "all" or own == lead
    assert all(c.text.endswith("\n") for c in chunks if c.rank != 0)
