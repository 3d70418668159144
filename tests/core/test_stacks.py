from __future__ import annotations

from typing import Any

from ddp_magic.core.stacks import RankStack, Stacks, stacks_of

_LOSS: dict[str, Any] = {
    "file": "In[7]",
    "line": 20,
    "function": "step",
    "source": "loss.backward()",
    "is_users": True,
}
_CALL = {**_LOSS, "line": 30, "function": "", "source": "step()"}
_TORCH = {**_LOSS, "file": "torch/x.py", "function": "run", "source": "", "is_users": False}


def _answer(
    *frames: dict[str, Any],
    place: dict[str, Any],
    ops: tuple[dict[str, Any], ...] = (),
    **more: Any,
) -> dict[str, Any]:
    look = {"place": {"line": 20, **place}, "ops": list(ops), "awaits": [], **more}
    return {"look": look, "frames": list(frames), "left_out": 0, "threads": []}


def _op(name: str) -> dict[str, Any]:
    alike: dict[str, Any] = {"group": "0", "number": 17, "members": [0, 1, 2, 3]}
    return {**alike, "name": name, "sizes": [[4]], "dtypes": ["Float"]}


_WAITING = _answer(
    _TORCH, _LOSS, _CALL, place={"in_backward": True}, ops=(_op("allreduce"),), cpu_s=1.0
)


def test_ranks_at_the_same_place_are_told_of_once() -> None:
    deeper = {**_WAITING, "frames": [_TORCH, *_WAITING["frames"]]}
    answers = {0: _WAITING, 2: deeper, 3: _WAITING, 1: _answer(_CALL, place={"line": 30})}
    stacks = stacks_of(answers, (0, 1, 2, 3), {}, "In[7]")
    assert str(stacks).splitlines() == [
        "In[7] runs on ranks 0-3",
        "ranks 0, 2-3 wait in backward(), allreduce #17 of [4] float (line 20)",
        "    In[7] line 20, in step: loss.backward()",
        "    In[7] line 30: step()",
        "    … 1 to 2 frames of libraries",
        "rank 1 is at line 30",
        "    In[7] line 30: step()",
    ]
    full = list(stacks.groups[0].full())
    assert full[0] == "ranks 0, 3:"
    assert full[1] == "torch/x.py line 20, in run"
    assert full.index("rank 2:") == 4


def test_collectives_that_do_not_match_are_told() -> None:
    other = _answer(_CALL, place={"collective": "broadcast"}, ops=(_op("broadcast"),))
    stacks = stacks_of({0: _WAITING, 1: other}, (0, 1), {}, "In[7]")
    assert str(stacks).splitlines()[1] == (
        "rank 0 is in allreduce #17 of [4] float, rank 1 in broadcast #17 of [4] float:"
        " they do not match"
    )


def test_a_rank_that_waits_for_another_says_for_which() -> None:
    waits = _answer(_CALL, place={"collective": "all_reduce of [4] float32"})
    waits["look"]["awaits"] = [1]
    assert "rank 0 waits in all_reduce of [4] float32 (line 20) for rank 1" in str(
        stacks_of({0: waits}, (0,), {}, "In[7]")
    )


def test_without_a_cell_one_line_tells_all() -> None:
    idle = _answer(_CALL, place={"line": 0})
    stacks = stacks_of({0: idle, 1: idle}, (), {2: RankStack("was killed")}, "")
    assert str(stacks) == "no cell runs; ranks 0-1 are ready; rank 2 was killed"


def test_a_thread_of_the_users_is_told_also_where_no_cell_runs() -> None:
    idle = {**_answer(place={"line": 0}), "threads": [("prefetch", _LOSS)]}
    assert str(stacks_of({0: idle}, (), {}, "")).splitlines() == [
        "no cell runs; rank 0 is ready",
        "rank 0 is ready",
        "    thread prefetch: In[7] line 20, in step: loss.backward()",
    ]


def test_the_middle_of_a_deep_stack_is_left_out() -> None:
    deep = {**_answer(_LOSS, _LOSS, _CALL, _CALL, place={}), "left_out": 96}
    (group,) = stacks_of({0: deep}, (0,), {}, "In[7]").groups
    assert list(group.full())[2] == "… 96 more"
    assert "96 more" in group.users[2]
    assert not group.folded


def test_no_rank_says_no_more_than_that() -> None:
    assert str(Stacks({})) == "no cell runs"
