from ddp_magic.core.failures import FailureStory, RankFailure


def _failure(
    rank: int, name: str = "ValueError", at_s: float = 0.0, text: str = "x"
) -> RankFailure:
    return RankFailure(rank, name, text, (f"\x1b[31m{name}\x1b[0m", text), at_s)


def _story(*failures: RankFailure, finished: tuple[int, ...] = (), **died: str) -> FailureStory:
    dead = {int(rank[1:]): what for rank, what in died.items()}
    return FailureStory({one.rank: one for one in failures}, finished, dead)


def test_all_ranks_fail_alike() -> None:
    story = _story(*map(_failure, range(4)))
    assert story.lines() == ["all 4 ranks failed with ValueError: x"]
    assert _story(*map(_failure, range(2))).summary() == "ValueError: x (both ranks)"


def test_the_first_failure_leads_and_the_same_are_grouped() -> None:
    story = _story(
        _failure(0, "RuntimeError", at_s=3.0),
        _failure(1, at_s=1.0),
        _failure(2, at_s=2.0),
        finished=(3,),
    )
    assert story.first is not None
    assert story.first.rank == 1
    assert story.lines() == [
        "ranks 1-2 (rank 1 first) failed with ValueError: x",
        "rank 0 failed with RuntimeError: x",
        "rank 3 finished",
    ]


def test_a_death_is_told_before_what_it_caused() -> None:
    story = _story(_failure(0, "RuntimeError"), r1="died of SIGSEGV")
    assert story.summary() == "rank 1 died of SIGSEGV"
    assert story.lines() == ["rank 1 died of SIGSEGV", "rank 0 failed with RuntimeError: x"]


def test_ranks_that_died_alike_are_told_in_one_line() -> None:
    story = _story(r0="was ended: x", r1="was ended: x", r3="exited with code 3")
    assert story.summary() == "ranks 0-1 were ended: x; rank 3 exited with code 3"


def test_what_was_stopped_did_not_fail() -> None:
    story = _story(
        _failure(0, "KeyboardInterrupt", text=""), _failure(1, "KeyboardInterrupt", text="")
    )
    assert story.lines() == ["both ranks stopped here"]


def test_busy_ranks_are_named() -> None:
    story = FailureStory({0: _failure(0)}, (), {}, busy=(1, 2))
    assert story.lines() == [
        "rank 0 failed with ValueError: x",
        "ranks 1-2 are in the cell still",
        "`%ddp interrupt` kills what does not end",
    ]


def test_a_missing_name_is_known() -> None:
    assert _failure(0, "NameError", text="name 'y' is not defined").missing_name == "y"
    assert _failure(0, "ValueError", text="name 'y' is not defined").missing_name == ""


def test_only_the_first_line_of_a_message_is_repeated() -> None:
    assert _failure(0, text="one\ntwo").headline == "ValueError: one"
    assert _failure(0, text="").headline == "ValueError"


GLOO = "[pair.cc:553] Connection closed by peer"


def test_who_was_freed_is_told_as_what_it_was() -> None:
    story = FailureStory(
        {
            0: _failure(0, "ZeroDivisionError", 2.0, "division by zero"),
            1: _failure(1, "RuntimeError", 1.0, GLOO),
        },
        (),
        {},
        freed={1: "all_reduce (line 4)"},
    )
    assert story.first is not None
    assert story.first.rank == 0
    assert story.summary() == "ZeroDivisionError: division by zero (rank 0)"
    assert story.lines() == [
        "rank 0 failed with ZeroDivisionError: division by zero",
        "rank 1 waited in all_reduce (line 4) in vain; rank 0 had ended the cell",
    ]


def test_who_was_interrupted_is_told_where_it_was() -> None:
    story = FailureStory(
        {
            0: _failure(0, "KeyboardInterrupt", 1.0, ""),
            1: _failure(1, "ValueError", 2.0),
            2: _failure(2, "RuntimeError", 1.5, GLOO),
        },
        (3,),
        {},
        places={0: "is at line 3: time.sleep(9)", 2: "waits in barrier (line 4)"},
    )
    assert story.summary() == "ValueError: x (rank 1)"
    assert story.lines() == [
        "rank 1 failed with ValueError: x",
        "rank 0 was interrupted at line 3: time.sleep(9)",
        "rank 2 was interrupted in barrier (line 4)",
        "rank 3 finished",
    ]


def test_who_was_freed_is_told_once_though_it_was_interrupted_too() -> None:
    story = FailureStory(
        {0: _failure(0, "RuntimeError", 1.0, GLOO)},
        (),
        {1: "has gone"},
        freed={0: "barrier (line 4)"},
        places={0: "waits in barrier (line 4)"},
    )
    assert story.lines() == ["rank 1 has gone", "rank 0 waited in barrier (line 4) in vain"]


def test_who_had_failed_when_it_was_interrupted_was_at_no_place() -> None:
    story = FailureStory(
        {0: _failure(0, "RuntimeError", 1.0, GLOO)},
        (),
        {1: "has gone"},
        places={0: "is not in your code"},
    )
    assert story.lines() == ["rank 1 has gone", "rank 0 was stopped then"]


def test_what_does_not_match_is_told_first() -> None:
    story = FailureStory({}, (), {}, freed={0: "barrier (line 1)"}, clash="they do not match")
    assert story.summary() == "they do not match; rank 0 waited in barrier (line 1) in vain"
    assert story.lines()[0] == "they do not match"


def test_a_call_that_does_not_match_is_one_failure_on_all_ranks() -> None:
    text = "The ranks' calls do not match: rank 0 barrier, rank 1 all_reduce."
    failures = [
        RankFailure(rank, "CollectiveError", text, (f"line {rank}",), float(rank))
        for rank in range(2)
    ]
    assert _story(*failures).lines() == [f"both ranks failed with CollectiveError: {text}"]


def test_where_all_waited_for_who_had_finished_that_is_the_failure() -> None:
    freed = {1: "backward() (line 3)", 2: "backward() (line 3)"}
    failures = {rank: _failure(rank, "RuntimeError", 1.0, GLOO) for rank in freed}
    story = FailureStory(failures, (0,), {}, freed=freed)
    said = "ranks 1-2 waited in backward() (line 3) in vain; rank 0 had ended the cell"
    assert story.summary() == said
    assert story.lines() == [said, "rank 0 finished"]


def test_a_freed_rank_that_goes_on_has_failed_all_the_same() -> None:
    story = FailureStory({}, (0, 1), {}, freed={1: "barrier (line 2)"})
    said = "rank 1 waited in barrier (line 2) in vain; rank 0 had ended the cell"
    assert story.summary() == said
