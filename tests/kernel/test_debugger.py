"""Conversations with ranks that have stopped, or ask something."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_magic import CellError, CellInterrupted, Session, StateError, UsageError
from ddp_magic.testing import RecordingView
from tests.kernel.conftest import Run
from tests.kernel.talk import Ends, Talk, When, look_into, talk


@pytest.fixture(scope="module", autouse=True)
def _imports(session: Session) -> None:
    session.run("import os, time, torch, torch.distributed as dist", view=RecordingView())


@pytest.fixture(autouse=True)
def _is_left_ready(session: Session) -> Iterator[None]:
    """After each conversation the group works, and nothing is left in the user's namespace."""
    session.run("_names = set(globals())", view=RecordingView())
    yield
    view = RecordingView()
    session.run(
        "import sys\n"
        "total = torch.ones(1)\ndist.all_reduce(total)\n"
        "assert sys.gettrace() is None\n"
        "left = {n for n in globals() if n.startswith('__') and n not in _names}\n"
        "print(int(total.item()), left)",
        view=view,
    )
    assert view.stdout == "2 set()\n"


# ---- which rank, where, and what is asked of it


def test_ranks_that_stop_are_told_of_with_their_place(session: Session) -> None:
    view = talk(session, "x = rank * 10\nbreakpoint()\ny = x + 1\nprint('y', y)", "x", "c")
    assert view.stopped == {0: "line 3: breakpoint()", 1: "line 3: breakpoint()"}
    assert view.prompts == ["[rank 0] ipdb> "] * 2
    assert "----> 3 breakpoint()" in view.transcript
    assert view.answers[0] == "0\n"
    assert "y 1" in view.answers[1]
    assert "[rank 1] y 11" in view.answers[1]
    helped = "`rank 1` goes to rank 1, `all EXPR` asks all, `c` continues all, `q` ends the cell"
    assert [notice for notice in view.notices if "`c`" in notice] == [f"ddp: {helped}"]


def test_another_rank_is_moved_to_and_several_are_asked(session: Session) -> None:
    code = "x = rank * 10\nz = 7\nbreakpoint()"
    lines = ("rank 1", "x", "all x", "0-1 z", "0 x", "0,1 !z = 8", "all z", "rank 0", "c")
    view = talk(session, code, *lines)
    assert view.answers[0].startswith("ddp: rank 1 is at line 4: breakpoint()\n")
    assert view.answers[1:7] == [
        "10\n",
        "[rank 0] 0\n[rank 1] 10\n",
        "[ranks 0-1] 7\n",
        "[rank 0] 0\n",
        "",
        "[ranks 0-1] 8\n",
    ]
    assert view.prompts[1:8] == ["[rank 1] ipdb> "] * 7


def test_who_cannot_be_asked_is_said(session: Session) -> None:
    code = "if rank == 1:\n    breakpoint()\ndist.barrier()"
    view = talk(session, code, "rank 0", "9 rank", "0 1 x", "c", together=(1,))
    assert view.answers[0] == "ddp: rank 0 is not stopped; rank 1 can be asked\n"
    assert view.answers[1] == "ddp: there is no rank 9; rank 1 can be asked\n"
    assert "'0 1' is not a rank" in view.answers[2]
    assert "rank 0 runs on" in view.transcript


def test_a_cell_of_one_rank_names_no_other(session: Session) -> None:
    view = talk(session, "breakpoint()", "all rank", "c", together=(1,), ranks=(1,))
    assert view.answers[0] == "1\n"
    assert "ddp: `c` continues all, `q` ends the cell" in view.notices


def test_who_does_not_run_the_cell_cannot_be_asked(session: Session) -> None:
    view = talk(session, "breakpoint()", "rank 0", "c", together=(1,), ranks=(1,))
    assert view.answers[0] == "ddp: rank 0 is not stopped; rank 1 can be asked\n"


def test_two_ranks_at_different_breakpoints(session: Session) -> None:
    code = (
        "t = torch.ones(1)\nif rank == 0:\n    breakpoint()\n"
        "else:\n    breakpoint()\ndist.all_reduce(t)\nprint(t.item())"
    )
    view = talk(session, code, "rank 1", "p rank", "rank 0", "p rank", "c")
    assert view.stopped == {0: "line 4: breakpoint()", 1: "line 6: breakpoint()"}
    assert view.answers[1::2] == ["1\n", "0\n"]
    assert view.stdout.endswith("2.0\n")


# ---- stepping


def test_next_goes_from_statement_to_statement(session: Session) -> None:
    code = "breakpoint()\na = 1\nfor i in range(2):\n    a += i\nprint('a', a)"
    view = talk(session, code, "n", "n", "n", "n", "p i, a", "n", "n", "n", "n", "c")
    arrows = [_arrow(answer) for answer in view.answers[:8]]
    assert arrows == [3, 4, 5, 4, None, 5, 4, 6]
    assert view.answers[4] == "(0, 1)\n"
    assert "a 2" in view.answers[8]
    assert "rank 1 is at line 2: breakpoint()" in view.answers[8]


def test_an_empty_line_repeats(session: Session) -> None:
    view = talk(session, "breakpoint()\na = 1\nb = 2\nc_ = 3", "n", "", "p 5", "", "c")
    assert [_arrow(answer) for answer in view.answers[:2]] == [3, 4]
    assert view.answers[2:4] == ["5\n", "5\n"]


def test_step_return_and_until(session: Session) -> None:
    code = (
        "def f(n):\n    total = 0\n    for i in range(n):\n        total += i\n    return total\n"
        "breakpoint()\nv = f(3)\nprint(v)"
    )
    view = talk(session, code, "n", "s", "a", "n", "n", "n", "p i", "unt", "r", "retval", "c")
    assert "--Call--" in view.answers[1]
    assert view.answers[2] == "n = 3\n"
    assert _arrow(view.answers[7]) == 6, view.transcript
    assert "--Return--" in view.answers[8]
    assert view.answers[9] == "3\n"


def test_stepping_over_a_collective_that_others_are_not_at(session: Session) -> None:
    code = "t = torch.ones(1)\nbreakpoint()\ndist.all_reduce(t)\nprint(t.item())"
    view = talk(session, code, "n", "n", "p rank", "n", "n", "p t", "c")
    assert "ddp: rank 0 waits in all_reduce of [1] float32 (line 4), for others" in view.answers[1]
    assert "ddp: rank 1 is at line 3: breakpoint()" in view.answers[1]
    assert view.answers[2] == "1\n"
    assert "2." in view.answers[5]
    assert view.stdout.endswith("2.0\n")


def test_who_waits_for_one_that_is_looked_at_does_not_fail(session: Session) -> None:
    """The others are in the collective long before this rank is let go on."""
    code = "if rank == 0:\n    breakpoint()\nt = torch.ones(1)\ndist.all_reduce(t)\nprint(t.item())"
    wait = "__import__('time').sleep(3)"
    view = talk(session, code, wait, "n", "n", "n", "c", together=(0,))
    assert view.stdout.endswith("2.0\n")


def test_step_does_not_stop_in_what_a_breakpoint_calls(session: Session) -> None:
    code = "def f(n):\n    breakpoint()\n    return n\nbreakpoint()\nf(1)\nprint('end')"
    view = talk(session, code, "n", "s", "s", "s", "s", "c", together=(0,), ranks=(0,))
    assert _arrow(view.answers[3]) == 3, view.transcript
    assert "--Return--" not in view.answers[3]
    assert _arrow(view.answers[4]) == 4, view.transcript


def test_break_at_a_line_with_a_condition(session: Session) -> None:
    code = (
        "def g(n):\n    s = 0\n    for i in range(n):\n        s += i\n    return s\n"
        "breakpoint()\nv = g(5)\nif rank == 0: print(v)"
    )
    view = talk(session, code, "b 5, i == 3", "c", "p s", "all p i", "clear", "y", "c")
    assert "Breakpoint 1 at In[" in view.answers[0]
    assert view.answers[2] == "3\n"
    assert "rank 1 is not" not in view.transcript
    assert "Clear all breaks? " in view.prompts
    assert view.stdout.rstrip().endswith("10")


def test_breakpoints_set_in_a_cell_end_with_it(session: Session) -> None:
    code = "def g2(n):\n    return n\nbreakpoint()\ng2(1)"
    talk(session, code, "b g2", "c", "c", ranks=(0,), together=(0,))
    assert talk(session, "breakpoint()\ng2(1)", "b", "c", ranks=(0,), together=(0,)).answers == [
        "",
        "",
    ]


def _arrow(said: str) -> int | None:
    """Return the line that is pointed at."""
    for line in said.splitlines():
        if line.lstrip().startswith("--") and "> " in line and line.strip() != "--Call--":
            return int(line.split("> ")[1].split()[0])
    return None


# ---- where a breakpoint may be


def test_in_a_function_called_in_a_loop(session: Session) -> None:
    code = "def f(i):\n    if i == rank:\n        breakpoint()\nfor i in range(2):\n    f(i)"
    view = talk(session, code, "all p i", "c")
    assert view.stopped == {0: "line 4: breakpoint()", 1: "line 4: breakpoint()"}
    assert view.answers[0] == "[rank 0] 0\n[rank 1] 1\n"


def test_in_a_module_and_its_caller(session: Session, tmp_path: Path) -> None:
    module = tmp_path / "looked_at_module.py"
    module.write_text(
        "import pdb\ndef work(n):\n    m = n + 1\n    pdb.set_trace()\n    return m\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import looked_at_module\nprint(looked_at_module.work(rank))"
    )
    view = talk(session, code, "m", "u", "d", "r", "c")
    told = "line 4 of looked_at_module.py: pdb.set_trace()"
    assert view.stopped == {0: told, 1: told}
    assert view.answers[0] == "1\n"
    assert "looked_at_module.work(rank)" in view.answers[1]
    session.run(f"sys.path.remove({str(tmp_path)!r})", view=RecordingView())


def test_in_a_script(session: Session, tmp_path: Path) -> None:
    from ddp_magic.core.options import Program

    script = tmp_path / "looked_at.py"
    script.write_text("n = 5\nbreakpoint()\nn += 1\nprint('n', n)\n")
    view = Talk(lines=["n", "!n = 10", "n", "c"], together=(0, 1))
    session.run_program(Program(str(script)), view=view)
    assert not view.lines
    assert view.stopped[0] == "line 2 of looked_at.py: breakpoint()"
    assert "n 11" in view.stdout


def test_dist_breakpoint_stops_one_rank(session: Session) -> None:
    code = "for i in range(2):\n    dist.breakpoint(1)\nprint('out')"
    view = talk(session, code, "p i", "c", "p i", "n", "c", together=(1,))
    assert view.answers[0::2][:2] == ["0\n", "1\n"]
    assert _arrow(view.answers[3]) == 2
    assert "rank 0 runs on" in view.transcript


def test_in_code_that_awaits(session: Session) -> None:
    code = (
        "import asyncio\nawait asyncio.sleep(0)\nbreakpoint()\nz = 3\n"
        "await asyncio.sleep(0)\nprint('z', z)"
    )
    view = talk(session, code, "n", "n", "n", "p z", "c")
    assert [_arrow(answer) for answer in view.answers[:3]] == [5, 6, 7]
    assert view.answers[3] == "3\n"


def test_in_tasks_of_asyncio(session: Session) -> None:
    code = (
        "import asyncio\nasync def t(n):\n    breakpoint()\n    await asyncio.sleep(0)\n"
        "    return n\n"
    )
    started = f"{code}print(asyncio.run(t(rank)))"
    view = talk(session, started, "p n", "n", "n", "c", ranks=(1,), together=(1,))
    assert [_arrow(answer) for answer in view.answers[1:3]] == [5, 6]
    awaited = f"{code}print(await asyncio.gather(t(1), t(2)))"
    view = talk(session, awaited, "p n", "c", "p n", "c", ranks=(1,), together=(1,))
    assert view.answers[0::2] == ["1\n", "2\n"]


def test_in_a_generator_and_in_del(session: Session) -> None:
    code = (
        "def g():\n    yield 1\n    breakpoint()\n    yield 2\n"
        "class D:\n    def __del__(self):\n        breakpoint()\n"
        "print(list(g()))\nd = D()\ndel d\nprint('end')"
    )
    view = talk(session, code, "n", "c", "w", "c", together=(0,), ranks=(0,))
    assert "__del__()" in view.answers[2]
    assert view.stdout.endswith("end\n")


def test_in_a_hook_of_backward(session: Session) -> None:
    code = (
        "model = torch.nn.Linear(2, 1)\nopt = torch.optim.SGD(model.parameters(), 0.1)\n"
        "def hook(g):\n    if rank == 1: breakpoint()\n    return g\n"
        "h = model.weight.register_hook(hook)\n"
        "loss = model(torch.ones(4, 2)).sum(); loss.backward(); opt.step()\nh.remove()\n"
        "print('trained')"
    )
    view = talk(session, code, "p g.shape", "w", "c", together=(1,))
    assert "torch.Size([1, 2])" in view.answers[0]
    assert "ddp_magic" not in view.answers[1]
    assert "trained" in view.stdout


def test_in_the_forward_of_a_ddp(session: Session) -> None:
    code = (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "class M(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__(); self.l = torch.nn.Linear(2, 1)\n"
        "    def forward(self, x):\n        if rank == 0: breakpoint()\n        return self.l(x)\n"
        "m = DDP(M())\nwith torch.no_grad():\n    m(torch.ones(1, 2))\n"
        "m(torch.ones(1, 2)).sum().backward()\nprint('through')"
    )
    view = talk(session, code, "torch.is_grad_enabled()", "c", "p x.shape", "c", together=(0,))
    assert view.answers[0] == "False\n"
    assert "through" in view.stdout


def test_while_a_collective_is_in_flight(session: Session) -> None:
    code = (
        "t = torch.ones(1)\nw = dist.all_reduce(t, async_op=True)\n"
        "if rank == 1: breakpoint()\nw.wait()\nprint(t.item())"
    )
    assert talk(session, code, "p 1", "n", "c", together=(1,)).stdout.count("2.0") == 1


def test_in_a_thread(session: Session) -> None:
    code = (
        "import threading\ndef f():\n    v = rank\n    breakpoint()\n"
        "t = threading.Thread(target=f)\nt.start()\nt.join()\nprint('joined')"
    )
    view = talk(session, code, "all v", "c")
    assert view.answers[0] == "[rank 0] 0\n[rank 1] 1\n"
    assert "joined" in view.stdout


def test_in_a_thread_is_left_by_quitting(session: Session) -> None:
    code = (
        "import threading\ndef f():\n    breakpoint()\n"
        "t = threading.Thread(target=f)\nt.start()\nt.join()\nprint('joined')"
    )
    talk(session, code, "q", raises=CellInterrupted)
    session.run("assert not t.is_alive() or t.join(20) is None", view=RecordingView())


# ---- where it is passed over


def test_in_a_loaders_worker_it_is_passed_over(session: Session) -> None:
    code = (
        "from torch.utils.data import DataLoader, Dataset\nclass D(Dataset):\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, i):\n        breakpoint()\n        return i\n"
        "n = sum(len(b) for b in DataLoader(D(), num_workers=1))\nprint('n', n)"
    )
    view = talk(session, code, together=())
    assert "n 2" in view.stdout
    assert view.prompts == []


def test_in_the_background_it_is_passed_over_and_said_once(session: Session) -> None:
    view = Talk()
    code = "for _ in range(3):\n    breakpoint()\nprint('on')"
    cell = session.run(code, view=view, background=True, header="%%ddp -b\n")
    assert cell is not None
    assert cell.wait(30)
    told = [notice for notice in view.notices if "passed over" in notice]
    assert len(told) == 1
    assert told[0].startswith("breakpoint() on line 3 was passed over: ")
    assert view.stdout == "on\n"


def test_without_input_it_is_passed_over(run: Run) -> None:
    view = run("breakpoint()\ndist.breakpoint()\nprint('on')")
    told = [notice for notice in view.notices if "passed over" in notice]
    assert told == [f"breakpoint() on line {n} was passed over: nobody types" for n in (1, 2)]
    assert view.stdout == "on\n"


def test_without_input_what_asks_fails(session: Session) -> None:
    with pytest.raises(CellError, match=r"Nobody can be asked 'v\? ': nobody types"):
        session.run("input('v? ')", view=RecordingView())


def test_pythonbreakpoint_is_heeded(session: Session) -> None:
    code = (
        "os.environ['PYTHONBREAKPOINT'] = '0'\nbreakpoint()\nprint('on')\n"
        "del os.environ['PYTHONBREAKPOINT']"
    )
    assert talk(session, code, together=()).stdout == "on\n"


# ---- the end


def test_quitting_ends_the_cell_cleanly(session: Session) -> None:
    view = talk(session, "before = 1\nbreakpoint()\nafter = 2", "q", raises=CellInterrupted)
    assert "BdbQuit" not in view.transcript
    session.run("assert before == 1 and 'after' not in globals()", view=RecordingView())


@pytest.mark.parametrize("end", [EOFError(), KeyboardInterrupt()])
def test_ctrl_d_and_stop_end_it_as_well(session: Session, end: BaseException) -> None:
    talk(session, "breakpoint()\nprint('after')", "p 1", end, raises=CellInterrupted)


def test_quitting_while_another_waits_in_a_collective(session: Session) -> None:
    code = "if rank == 1:\n    breakpoint()\ndist.barrier()"
    talk(session, code, "p 1", "q", together=(1,), raises=CellInterrupted)


def test_quitting_while_another_is_in_compiled_code(session: Session) -> None:
    code = (
        "if rank == 1:\n    breakpoint()\nelse:\n"
        "    import ctypes; ctypes.CDLL(None).usleep(2_500_000)"
    )
    talk(session, code, "q", together=(1,), raises=CellInterrupted)


def test_quitting_in_the_middle_of_stepping(session: Session) -> None:
    code = "def f():\n    a = 1\n    b = 2\n    return a + b\nbreakpoint()\nf()\nprint('after')"
    view = talk(session, code, "n", "s", "n", "q", raises=CellInterrupted)
    assert "after\n" not in view.stdout


def test_an_endless_loop_typed_is_stopped(session: Session) -> None:
    def stop_it() -> None:
        session.interrupt()

    view = talk(session, "breakpoint()", "p 1", Ends(stop_it), raises=CellInterrupted)
    assert view.answers == ["1\n"]


def test_a_cell_stopped_while_what_was_typed_runs(session: Session, tmp_path: Path) -> None:
    """Stop comes when the rank has said, by a file, that it is in the loop."""
    there = tmp_path / "there"

    def stop_soon() -> None:
        until_s = time.monotonic() + 30
        while not there.exists() and time.monotonic() < until_s:
            time.sleep(0.01)
        session.interrupt()

    stopper = threading.Thread(target=stop_soon)
    stopper.start()
    endless = f"open({str(there)!r}, 'w'); exec('while True: pass')"
    talk(session, "breakpoint()", endless, raises=CellInterrupted)
    stopper.join()


def test_an_error_raised_while_stepping_fails_the_cell(session: Session) -> None:
    code = "breakpoint()\n1 / 0\nprint('after')"
    view = talk(session, code, "all n", "n", "n", "c", raises=CellError)
    assert "ZeroDivisionError" in view.transcript


def test_one_that_raises_while_another_asks(session: Session) -> None:
    code = "if rank == 1:\n    breakpoint()\nelse:\n    1 / 0\nprint('on', rank)"
    after = When("(rank 0); the cell ends after `c` or `q`", "rank")
    view = talk(session, code, after, "c", together=(1,), raises=CellError)
    assert view.answers[0] == "1\n"
    assert "ddp: ZeroDivisionError: division by zero (rank 0); the cell ends after" in (
        view.transcript
    )


# ---- what is typed


def test_errors_in_what_is_typed_are_only_told(session: Session) -> None:
    code = "class R:\n    def __repr__(self): raise ValueError('no repr')\nr = R()\nbreakpoint()"
    lines = ("1/0", "nonsense foo", "rank x", "p", "p r", "whatis r", "all 1/0", "j 9", "p 1", "c")
    view = talk(session, code, *lines)
    assert view.answers[:4] == [
        "*** ZeroDivisionError: division by zero\n",
        "*** SyntaxError: invalid syntax\n",
        "*** SyntaxError: invalid syntax\n",
        "*** SyntaxError: invalid syntax\n",
    ]
    assert view.answers[4] == "*** ValueError: no repr\n"
    assert "R'>" in view.answers[5]
    assert view.answers[6] == "[ranks 0-1] *** ZeroDivisionError: division by zero\n"
    assert view.answers[8] == "1\n"


def test_a_huge_value_is_cut(session: Session) -> None:
    view = talk(session, "big = 'x' * 10**7\nbreakpoint()", "big", "all len(big)", "c")
    assert len(view.answers[0]) < 11_000
    assert "9,990,003 characters are left out" in view.answers[0]
    assert view.answers[1] == "[ranks 0-1] 10000000\n"


def test_what_is_assigned_stays(session: Session) -> None:
    code = "def f(v):\n    breakpoint()\n    return v\nprint(f(1))\nprint(kept)"
    view = talk(session, code, "v = 5", "v", "all globals()['kept'] = 7", "c")
    assert view.answers[1] == "5\n"
    assert "5\n7\n" in view.stdout


def test_a_statement_of_several_lines(session: Session) -> None:
    one = talk(session, "breakpoint()", "for i in range(2): print('one', i)", "c")
    assert one.answers[0] == "one 0\none 1\n"
    lines = ("for i in range(2):", "    print('i', i)", "", "foo(", ")", "if rank:", EOFError())
    view = talk(session, "breakpoint()", *lines, "x = (", "c", "3)", "x", "c")
    assert view.answers[2] == "i 0\ni 1\n"
    assert "NameError" in view.answers[4]
    assert view.prompts[1] == "[rank 0] ...   "


def test_commands_of_pdb(session: Session) -> None:
    code = "x = 4\nbreakpoint()\ny = 5"
    lines = ("pp {'a': x}", "whatis x", "alias px p x", "px", "p x;; p x + 1", "display x", "x?")
    view = talk(session, code, *lines, "h n", "restart", "source print", "ll", "all x?", "c")
    said = dict(
        zip((*lines, "h n", "restart", "source", "ll", "all x?"), view.answers, strict=False)
    )
    assert said["pp {'a': x}"] == "{'a': 4}\n"
    assert said["whatis x"] == "<class 'int'>\n"
    assert said["px"] == "4\n"
    assert said["p x;; p x + 1"] == "4\n5\n"
    assert said["display x"] == "display x: 4\n"
    assert "Type:" in said["x?"]
    assert "`q` ends it" in said["restart"]
    assert "----> 3 breakpoint()" in said["ll"]
    assert said["all x?"].startswith("[ranks 0-1]\n")


def test_pdbs_of_others(session: Session) -> None:
    code = (
        "import pdb\npdb.run('a = 1; b = 2')\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    pdb.post_mortem()\n"
        "import IPython.core.debugger as d\nd.set_trace()\nprint('end')"
    )
    view = talk(
        session, code, "c", "q", "debug 1 + 1", "p 3", "c", "p 4", "c", ranks=(0,), together=(0,)
    )
    assert "ddp: rank 0 has failed at line 5: 1 / 0" in view.transcript
    assert "RECURSIVE" in view.answers[2]
    assert view.answers[3] == "3\n"
    assert view.stdout.endswith("end\n")


def test_pdb_called_automatically(session: Session) -> None:
    session.run("%pdb on", view=RecordingView())
    try:
        view = talk(session, "v = rank\n1 / 0", "all v", "q", raises=CellError)
        assert view.stopped == {0: "line 3: 1 / 0", 1: "line 3: 1 / 0"}
        assert view.answers[0] == "[rank 0] 0\n[rank 1] 1\n"
        talk(session, "1 / 0", "p 1", KeyboardInterrupt(), raises=CellInterrupted)
    finally:
        session.run("%pdb off", view=RecordingView())


def test_pdb_called_where_nobody_can_be_asked(session: Session) -> None:
    session.run("%pdb on", view=RecordingView())
    try:
        with pytest.raises(CellError, match="ZeroDivisionError"):
            session.run("1 / 0", view=RecordingView())
    finally:
        session.run("%pdb off", view=RecordingView())
    view = RecordingView()
    session.run("import pdb\npdb.Pdb().set_trace()\npdb.run('a = 1')\nprint('on')", view=view)
    assert "on\n" in view.stdout
    assert "ddp: pdb was passed over: nobody types" in view.stderr


# ---- interact


def test_interact(session: Session) -> None:
    lines = ("interact", "x = 3", "for k in range(2):", "    print('k', k)", "", "x", "1/0", "c")
    code = "x = 5\nbreakpoint()\nprint('x', x)"
    view = talk(session, code, *lines, "exit()", "x", "c")
    assert "exit() leaves this console" in view.answers[0]
    assert view.answers[4:6] == ["k 0\nk 1\n", "3\n"]
    assert "ZeroDivisionError" in view.answers[6]
    assert "NameError" in view.answers[7]
    assert view.answers[9] == "5\n"
    assert view.prompts[1] == "[rank 0] >>> "


def test_from_interact_other_ranks_are_asked_and_all_go_on(session: Session) -> None:
    view = talk(session, "breakpoint()\nprint('on')", "interact", "rank 1", "p rank", "c")
    assert view.prompts == [
        "[rank 0] ipdb> ",
        "[rank 0] >>> ",
        "[rank 1] ipdb> ",
        "[rank 1] ipdb> ",
    ]
    assert "on" in view.stdout


def test_interact_is_left_by_stop(session: Session) -> None:
    talk(session, "breakpoint()", "interact", KeyboardInterrupt(), raises=CellInterrupted)


# ---- input()


def test_input_is_asked_for_once(session: Session) -> None:
    code = "v = input('lr? ')\nw = input('n? ')\nprint(float(v) * int(w))"
    view = talk(session, code, "0.5", "4", together=())
    assert view.prompts == ["lr? ", "n? "]
    assert view.stdout == "2.0\n"


def test_input_that_differs_is_asked_of_each(session: Session) -> None:
    view = talk(session, "v = input(f'r{rank}? ')\nprint(v)", "a", "b", together=())
    assert view.prompts == ["r0? ", "[rank 1] r1? "]
    assert view.stdout == "a\n[rank 1] b\n"


def test_input_that_some_ask_alike_is_asked_once_of_these(session: Session) -> None:
    code = "v = input('a? ') if rank else input('b? ')\nw = input('same? ')\nprint(v, w)"
    view = talk(session, code, "for 0", "for both", "for 1", together=())
    assert sorted(view.prompts) == ["[rank 1] a? ", "b? ", "same? "]
    assert "[rank 1] for 1 for both\n" in view.stdout
    code = "try:\n    input('v? ')\nexcept EOFError:\n    print('no more')"
    assert talk(session, code, EOFError(), together=()).stdout == "no more\n"


def test_a_password_and_the_end_of_input(session: Session) -> None:
    code = (
        "import getpass\nn = len(getpass.getpass())\n"
        "try:\n    input('more? ')\nexcept EOFError:\n    print('no more', n)"
    )
    view = talk(session, code, "secret", EOFError(), together=(), ranks=(0,))
    assert view.stdout == "no more 6\n"


def test_stop_at_input(session: Session) -> None:
    view = talk(session, "input('v? ')", KeyboardInterrupt(), together=(), raises=CellInterrupted)
    assert view.prompts == ["v? "]


def test_stepping_over_input(session: Session) -> None:
    code = "breakpoint()\nv = input('v? ')\nprint('v', v)"
    view = talk(session, code, "n", "n", "seven", "v", "rank 1", "n", "n", "c")
    assert view.prompts[2] == "v? "
    assert view.answers[3] == "'seven'\n"
    assert "rank 1" in view.prompts[5]
    assert view.stdout.count("v seven") == 1
    assert talk(session, code, "all n", "all n", "eight", "all v", "c").answers[3] == (
        "[ranks 0-1] 'eight'\n"
    )


def test_input_that_is_typed(session: Session) -> None:
    view = talk(session, "breakpoint()", "rank 1", "input('q? ')", "yes", "c")
    assert view.prompts[2] == "[rank 1] q? "
    assert view.answers[2] == "'yes'\n"


# ---- time, death, others


def test_the_time_at_the_prompt_does_not_count(session: Session) -> None:
    def think() -> str:
        threading.Event().wait(2)
        return "c"

    view = talk(session, "breakpoint()\nprint('in time')", think, timeout_s=1.8)
    assert "in time" in view.stdout


def test_a_rank_that_dies_while_it_asks(session: Session) -> None:
    pid = session.status().ranks[1].pid
    code = "if rank == 1:\n    breakpoint()\nelse:\n    dist.barrier()"

    def kill() -> None:
        os.kill(pid, signal.SIGKILL)

    talk(session, code, "p 1", Ends(kill), together=(1,), raises=CellError)
    session.heal(RecordingView())


def test_a_rank_that_dies_while_another_asks(session: Session) -> None:
    pid = session.status().ranks[0].pid
    code = "if rank == 1:\n    breakpoint()\nelse:\n    time.sleep(60)"

    def kill() -> None:
        os.kill(pid, signal.SIGKILL)

    after = When("rank 0 was killed", "rank")
    view = talk(session, code, "p 1", kill, after, "c", together=(1,), raises=CellError)
    assert view.answers[1] == "1\n"
    session.heal(RecordingView())


def test_others_are_asked_while_a_prompt_is_open(session: Session) -> None:
    def look() -> str:
        told = str(session.where())
        return f"p {told.splitlines()[0]!r}, {session.pull('x')}"

    view = talk(session, "x = rank\nbreakpoint()", look, "c")
    assert "runs on ranks 0-1" in view.answers[0]
    assert "[0, 1]" in view.answers[0]


def test_the_silence_at_the_prompt_is_not_told_of(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddp_magic.kernel.vigil._QUIET_S", 0.5)
    monkeypatch.setattr("ddp_magic.kernel.vigil._TELL_S", 0)

    def think() -> None:
        threading.Event().wait(1)

    view = talk(session, "breakpoint()", "p 1", think, KeyboardInterrupt(), raises=CellInterrupted)
    assert view.progresses == []


def test_interrupting_while_a_prompt_is_open(session: Session) -> None:
    def stop() -> None:
        assert session.interrupt()

    talk(session, "breakpoint()\nprint('after')", Ends(stop), raises=CellInterrupted)


# ---- %ddp debug


_FAILS = "def work():\n    local = rank\n    raise ValueError('bad')\nwork()"


def test_a_failure_is_looked_into(session: Session) -> None:
    talk(session, _FAILS, together=(), raises=CellError)
    view = look_into(
        session, "local", "all local", "u", "rank 1", "pp local", "q", rank=0, together=(0, 1)
    )
    assert view.stopped == dict.fromkeys((0, 1), "line 4: raise ValueError('bad')")
    assert view.answers[0] == "0\n"
    assert view.answers[1] == "[rank 0] 0\n[rank 1] 1\n"
    assert "work()" in view.answers[2]
    assert view.answers[4] == "1\n"
    assert "`q` leaves" in view.transcript


@pytest.mark.parametrize("end", ["c", "q", "exit", EOFError()])
def test_it_can_be_looked_into_again(session: Session, end: str) -> None:
    talk(session, _FAILS, together=(), raises=CellError)
    for rank in (1, 0):
        assert look_into(session, "local", end, rank=rank).answers[0] == f"{rank}\n"


def test_stop_leaves_it_and_nothing_is_lost(session: Session) -> None:
    talk(session, _FAILS, together=(), raises=CellError)
    with pytest.raises(CellInterrupted):
        look_into(session, "local", KeyboardInterrupt())
    assert look_into(session, "interact", "local + 1", "exit()", "q", rank=1).answers[1] == "2\n"


def test_it_is_looked_into_after_other_cells_and_a_new_group(session: Session) -> None:
    code = "def f(m):\n    if rank == 1:\n        m / 0\n    dist.barrier()\nf(3)"
    talk(session, code, together=(), raises=CellError)
    session.run("dist.all_reduce(torch.ones(1))", view=RecordingView())
    view = look_into(session, "m", "rank 0", "m", "q", rank=1, together=(0, 1))
    assert view.prompts[0] == "[rank 1] ipdb> "
    assert view.answers[0::2][:2] == ["3\n", "3\n"]
    assert view.stopped[0] == "line 5: dist.barrier()"


def test_models_that_have_come_apart_are_seen_so(session: Session) -> None:
    """They are made equal by the next cell that trains, and not by looking."""
    code = (
        "model = torch.nn.Linear(2, 1)\nopt = torch.optim.SGD(model.parameters(), 0.1)\n"
        "model(torch.ones(4, 2)).sum().backward(); opt.step()\n"
        "with torch.no_grad(): model.bias.fill_(rank)\n1 / 0"
    )
    talk(session, code, together=(), raises=CellError)
    view = look_into(session, "all model.bias.item()", "q", together=(0, 1))
    assert view.answers[0] == "[rank 0] 0.0\n[rank 1] 1.0\n"
    view = look_into(session, "all model.bias.item()", "q", together=(0, 1))
    assert view.answers[0] == "[rank 0] 0.0\n[rank 1] 1.0\n"
    assert talk(session, "print(model.bias.item())", together=()).stdout == "0.0\n"


def test_what_only_some_failed_with(session: Session) -> None:
    talk(session, "if rank == 1:\n    1 / 0", together=(), raises=CellError)
    with pytest.raises(UsageError, match=r"%ddp debug 0: .* failed, but on rank 1"):
        look_into(session, rank=0)
    with pytest.raises(UsageError):
        look_into(session, rank=7)
    assert look_into(session, "rank", "all rank", "q").answers[:2] == ["1\n", "1\n"]


def test_chained_errors_and_nested_functions(session: Session) -> None:
    code = (
        "def outer():\n    kept = 1\n    def inner():\n        deep = 2\n"
        "        raise KeyError(kept)\n    try:\n        inner()\n"
        "    except KeyError as error:\n        raise ValueError('outer') from error\nouter()"
    )
    talk(session, code, together=(), raises=CellError)
    view = look_into(session, "kept", "w", "exceptions", "exceptions 0", "deep", "q")
    assert view.answers[0] == "1\n"
    assert "outer()" in view.answers[1]
    assert "ValueError('outer')" in view.answers[2]
    assert view.answers[4] == "2\n"


def test_what_has_exited_is_looked_into(session: Session) -> None:
    talk(
        session,
        "def g():\n    status = 5\n    raise SystemExit(status)\ng()",
        together=(),
        raises=CellError,
    )
    assert look_into(session, "status", "q").answers[0] == "5\n"


def test_what_fails_before_it_runs_is_not_looked_into(session: Session) -> None:
    talk(session, _FAILS, together=(), raises=CellError)
    with pytest.raises(SyntaxError):
        session.run("def f(:", view=RecordingView())
    assert look_into(session, "local", "q", rank=0).answers[0] == "0\n"


def test_without_input_it_is_refused(session: Session) -> None:
    talk(session, _FAILS, together=(), raises=CellError)
    with pytest.raises(StateError, match="nobody types"):
        session.debug(view=RecordingView())


def test_those_that_have_died_are_not_looked_into(session: Session) -> None:
    talk(session, _FAILS, together=(), raises=CellError)
    pid = session.status().ranks[1].pid
    os.kill(pid, signal.SIGKILL)
    until_s = time.monotonic() + 30
    while "rank 1 was killed" not in str(session.where()):
        assert time.monotonic() < until_s
    with pytest.raises(UsageError, match="on rank 0"):
        look_into(session, rank=1)
    assert look_into(session, "local", "q", together=(0,)).answers[0] == "0\n"
    session.heal(RecordingView())
    with pytest.raises(UsageError, match="on rank 0"):
        look_into(session, rank=1)


def test_where_nothing_has_failed(session: Session) -> None:
    session.restart(view=RecordingView())
    with pytest.raises(StateError, match="no cell has failed"):
        look_into(session)
    session.run("import os, time, torch, torch.distributed as dist", view=RecordingView())
    session.run("_names = set(globals())", view=RecordingView())


def test_looking_into_a_failure_before_any_training_ends_quietly(session: Session) -> None:
    session.run("from torch import nn\nnet = nn.Linear(2, 1)", view=RecordingView())
    with pytest.raises(CellError):
        session.run(
            "import torch\nfor _ in range(2):\n    if rank == 1: raise ValueError('early')\n"
            "    net(torch.ones(1, 2)).sum().backward()",
            view=RecordingView(),
        )
    view = RecordingView(typed=["p rank", "n", "q"])
    session.debug(1, view=view)
    assert "the code has ended" in view.stdout
    again = RecordingView(typed=["q"])
    session.debug(view=again)
    assert not any("keeps the frames" in notice for notice in again.notices)
    session.run("torch.distributed.all_reduce(torch.ones(1))", view=RecordingView())
