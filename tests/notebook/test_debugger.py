"""The debugger as a person at a notebook meets it: in the cell's own input box."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.notebook.conftest import CTRL_D, STOP, CellOutput, Notebook, When, kernel
from tests.told import stopped


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[tuple[Notebook, int]]:
    """A kernel with so many ranks."""
    size: int = request.param
    with kernel() as notebook:
        assert notebook.run(f"%ddp start -n {size} --seed 1").status == "ok"
        yield notebook, size


def _works(notebook: Notebook, size: int) -> bool:
    code = "%%ddp\nimport torch, torch.distributed as dist\nt = torch.ones(1)\ndist.all_reduce(t)\n"
    return notebook.run(f"{code}print(t.item())").text() == f"{float(size)}\n"


def _together(size: int, line: str) -> When:
    return When(range(size), line)


def test_a_conversation_from_a_breakpoint_to_the_end(ranks: tuple[Notebook, int]) -> None:
    notebook, size = ranks
    last = size - 1
    output = notebook.run(
        "%%ddp\nx = rank * 10\nbreakpoint()\ny = x + 1\nprint('y', y)",
        typed=[
            _together(size, "p x"),
            f"rank {last}",
            "x",
            f"0,{last} x + 1",
            "all world_size",
            "1/0",
            "nonsense foo",
            f"rank {size}",
            "n",
            "!y = 5",
            "n",
            "p y",
            "c",
        ],
    )
    assert output.status == "ok"
    assert stopped(output.shown) == dict.fromkeys(range(size), "line 3: breakpoint()")
    assert output.prompts[:3] == ["[rank 0] ipdb> "] * 2 + [f"[rank {last}] ipdb> "]
    for said in (
        f"[rank 0] 1\n[rank {last}] {last * 10 + 1}\n",
        f"[ranks 0-{last}] {size}\n",
        "*** ZeroDivisionError: division by zero\n",
        "*** SyntaxError: invalid syntax\n",
        f"ddp: there is no rank {size}; ranks 0-{last} can be asked\n",
        f"\n{last * 10 + 1}\n",
        "y 1\n",
    ):
        assert said in output.shown
    assert _works(notebook, size)


def test_quitting_in_the_middle(ranks: tuple[Notebook, int]) -> None:
    notebook, size = ranks
    output = notebook.run(
        "%%ddp\na = 1\nbreakpoint()\nb = 2\nprint('after')", typed=[_together(size, "n"), "q"]
    )
    assert output.status == "error"
    assert output.error["ename"] == "CellInterrupted"
    assert "after\n" not in output.text()
    assert _works(notebook, size)


@pytest.mark.parametrize("end", [STOP, CTRL_D])
def test_stop_and_ctrl_d_at_the_prompt(ranks: tuple[Notebook, int], end: str) -> None:
    notebook, size = ranks
    output = notebook.run("%%ddp\nbreakpoint()", typed=[_together(size, "p 1"), end])
    assert output.error["ename"] == "CellInterrupted"
    assert _works(notebook, size)


def test_stop_in_interact_and_at_input(ranks: tuple[Notebook, int]) -> None:
    notebook, size = ranks
    output = notebook.run("%%ddp\nbreakpoint()", typed=[_together(size, "interact"), "1 + 1", STOP])
    assert output.error["ename"] == "CellInterrupted"
    assert notebook.run("%%ddp\ninput('v? ')", typed=[STOP]).status == "error"
    assert _works(notebook, size)


def test_ranks_at_different_breakpoints_step_over_a_collective(
    ranks: tuple[Notebook, int],
) -> None:
    notebook, size = ranks
    last = size - 1
    output = notebook.run(
        "%%ddp\nif rank == 0:\n    breakpoint()\nelif rank == world_size - 1:\n"
        "    breakpoint()\nt = torch.ones(1)\ndist.all_reduce(t)\nprint(t.item())",
        typed=[
            When((0, last), "n"),
            "n",
            "n",
            When("for others", "p rank"),
            "n",
            "n",
            "n",
            "p t",
            "c",
        ],
    )
    assert output.status == "ok", output.shown
    assert "rank 0 has stopped at line 3: breakpoint()" in output.shown
    assert stopped(output.shown)[last] == "line 5: breakpoint()"
    assert "rank 0 waits in all_reduce" in output.shown
    assert f"ddp: rank {last} is at line 5: breakpoint()" in output.shown
    assert output.text().endswith(f"{float(size)}\n")
    assert _works(notebook, size)


def test_input_is_asked_for_once(ranks: tuple[Notebook, int]) -> None:
    notebook, size = ranks
    output = notebook.run(
        "%%ddp\nimport getpass\nv = input('lr? ')\nw = getpass.getpass('key? ')\nprint(v, len(w))",
        typed=["0.1", "secret"],
    )
    assert output.prompts == ["lr? ", "key? "]
    assert output.text() == "0.1 6\n"
    assert _works(notebook, size)


def test_a_front_end_without_input(ranks: tuple[Notebook, int]) -> None:
    notebook, _ = ranks
    output = notebook.run("%%ddp\nbreakpoint()\nprint('on')")
    assert output.status == "ok"
    told = "breakpoint() on line 2 was passed over: this front end takes no input"
    assert output.data("text/plain") == [told]
    assert "this front end takes no input" in notebook.run("%%ddp\ninput()").error["evalue"]
    assert "this front end takes no input" in notebook.run("%ddp debug").error["evalue"]


def _fail(notebook: Notebook) -> CellOutput:
    return notebook.run(
        "%%ddp\ndef work(m):\n    local = m + rank\n    if rank == 1:\n"
        "        raise ValueError('bad')\n"
        "    dist.barrier()\nwork(5)"
    )


def test_a_failure_is_looked_into_when_the_group_is_new(ranks: tuple[Notebook, int]) -> None:
    notebook, size = ranks
    assert _fail(notebook).status == "error"
    assert _works(notebook, size)
    for line in ("q", "c", CTRL_D):
        output = notebook.run(
            "%ddp debug", typed=[When((1,), "p local"), "u", "d", "1/0", "pp m", line]
        )
        assert output.status == "ok"
        assert output.prompts[0] == "[rank 1] ipdb> "
        assert "ValueError('bad')" in stopped(output.shown)[1]
        assert "\n6\n" in output.shown
        assert "division by zero" in output.shown
    assert notebook.run("%ddp debug 1", typed=["p local", STOP]).status == "error"
    output = notebook.run("%ddp debug 1", typed=["interact", "local + 1", "exit()", "q"])
    assert "\n7\n" in output.shown
    assert (
        f"%ddp debug {size}: it is not there that"
        in notebook.run(f"%ddp debug {size}", typed=[]).error["evalue"]
    )
    assert _works(notebook, size)
