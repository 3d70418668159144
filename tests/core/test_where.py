"""Where ranks are, in one line."""

from __future__ import annotations

from ddp_magic.core.where import Place, describe_places


def test_ranks_are_grouped_by_where_they_are() -> None:
    waiting = Place(5, source="dist.barrier()", collective="barrier")
    told = describe_places({0: waiting, 1: Place(4, source="time.sleep(60)"), 2: waiting})
    assert told == "ranks 0, 2 wait in barrier (line 5); rank 1 is at line 4: time.sleep(60)"


def test_places_outside_the_cell_are_named() -> None:
    told = describe_places({0: Place(7, file="utils.py"), 1: Place(0), 2: Place(None)})
    assert told == (
        "rank 0 is at line 7 of utils.py; rank 1 is not in your code;"
        " rank 2 is in compiled code that lets no other run"
    )


def test_long_lines_are_cut() -> None:
    assert len(str(Place(1, source="x" * 500))) < 80
