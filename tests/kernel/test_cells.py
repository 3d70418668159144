"""What a cell may hold, and what is seen of it."""

from __future__ import annotations

import math
import sys

import pytest
from ipyparallel import Client

from ddp_magic import CellError, CellInterrupted, CellTimeout, Session, StateError, UsageError
from ddp_magic.testing import RecordingView
from tests.kernel.conftest import Run


def test_variables_live_from_cell_to_cell(session: Session, run: Run) -> None:
    run("x = rank + 1")
    run("x += 10")
    assert session.pull("x") == [11, 12]
    assert session.pull("x", ranks=1) == 12


def test_pushed_variables_arrive_on_the_chosen_ranks(session: Session, run: Run) -> None:
    session.push({"pushed": [1, 2]})
    session.push({"pushed": "else"}, ranks=1)
    assert session.pull("pushed") == [[1, 2], "else"]


def test_tensors_come_as_arrays(session: Session, run: Run) -> None:
    run("import torch\nt = {'a': [torch.full((2,), float(rank)), torch.ones(1).bfloat16()]}")
    pulled = session.pull("t", ranks=1)
    assert pulled["a"][0].tolist() == [1.0, 1.0]
    assert pulled["a"][1].tolist() == [1.0]


def test_the_world_is_seen_but_is_no_global(session: Session, run: Run) -> None:
    run(
        "seen = (rank, world_size, local_rank, str(device))\n"
        "simple = (int, float, bool, str)\n"
        "foreign = [k for k in ('rank', 'world_size', 'local_rank', 'device', 'ddp')"
        " if k in globals()]\n"
    )
    assert session.pull("seen") == [(0, 2, 0, "cpu"), (1, 2, 1, "cpu")]
    assert session.pull("foreign") == [[], []]


def test_a_users_name_is_never_overwritten(session: Session, run: Run) -> None:
    run("device = 'mine'")
    run("pass")
    assert session.pull("device") == ["mine", "mine"]
    run("del device")
    assert session.pull("device") == ["cpu", "cpu"]


def test_torchruns_variables_are_set(session: Session, run: Run) -> None:
    run(
        "import os\nnames = 'RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK'\n"
        "values = [os.environ[n] for n in names.split()]\naddress = os.environ['MASTER_ADDR']"
    )
    assert session.pull("values") == [
        ["0", "0", "2", "2", "0", "0"],
        ["1", "1", "2", "2", "0", "0"],
    ]
    assert session.pull("address", ranks=0) == "127.0.0.1"


def test_collectives_work(session: Session, run: Run) -> None:
    run(
        "import torch, torch.distributed as dist\n"
        "t = torch.ones(2) * (rank + 1)\ndist.all_reduce(t)\nbackend = dist.get_backend()"
    )
    assert [t.tolist() for t in session.pull("t")] == [[3.0, 3.0], [3.0, 3.0]]
    assert session.pull("backend", ranks=0) == "gloo"


def test_the_ddp_helpers(session: Session, run: Run) -> None:
    view = run(
        "import torch\n"
        "total, mean = ddp.sum(rank + 1), ddp.mean(rank)\n"
        "tensor = ddp.mean(torch.tensor([float(rank)]))\n"
        "everyone = ddp.gather(f'rank {rank}')\n"
        "ddp.print('once')\nddp.barrier()"
    )
    assert session.pull("total") == [3, 3]
    assert session.pull("mean") == [0.5, 0.5]
    assert session.pull("tensor", ranks=1).tolist() == [0.5]
    assert session.pull("everyone", ranks=1) == ["rank 0", "rank 1"]
    assert view.stdout == "once\n"


def test_save_and_load(session: Session, run: Run, tmp_path: object) -> None:
    run(
        f"import torch, os\npath = {str(tmp_path)!r} + '/model.pt'\n"
        "ddp.save({'w': torch.arange(3)}, path)\n"
        "loaded = ddp.load(path)['w']\nleft = os.listdir(os.path.dirname(path))"
    )
    assert session.pull("loaded", ranks=1).tolist() == [0, 1, 2]
    assert session.pull("left") == [["model.pt"], ["model.pt"]]


def test_a_failed_save_fails_on_every_rank(run: Run) -> None:
    with pytest.raises(CellError) as caught:
        run("ddp.save(1, '/nowhere/at/all.pt')")
    assert sorted(caught.value.story.failures) == [0, 1]


def test_top_level_await_completes(run: Run) -> None:
    view = run("import asyncio\nawait asyncio.sleep(0.01)\nprint('awaited')")
    assert view.stdout == "awaited\n"


def test_asyncio_run_works_and_leaves_the_loop_in_order(run: Run) -> None:
    code = "import asyncio\nasync def f(): return 3\nprint(asyncio.run(f()))"
    assert run(code).stdout == "3\n"
    assert run("await asyncio.sleep(0)\nprint('still')").stdout == "still\n"


def test_magics_shell_and_last_expression(run: Run) -> None:
    view = run("!echo from the shell\n%env DDP_TEST=1\n40 + 2")
    assert "from the shell" in view.stdout
    assert view.displays == [{"text/plain": "42"}]


def test_a_cell_magic_and_automagic_within_the_cell(run: Run, tmp_path: object) -> None:
    assert run("%%capture captured\nprint('hidden')").stdout == ""
    assert run("captured.stdout").displays[0]["text/plain"] == r"'hidden\n'"
    assert str(tmp_path) in run(f"cd {tmp_path}").stdout


def test_rich_output_is_shown_once(run: Run) -> None:
    view = run(
        "from IPython.display import HTML, display\ndisplay(HTML('<b>hello</b>'))\nHTML('x')"
    )
    assert [data["text/html"] for data in view.displays] == ["<b>hello</b>", "x"]


def test_figures_are_shown(run: Run) -> None:
    view = run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    assert "image/png" in view.displays[0]


def test_display_updates_and_clear_output(run: Run) -> None:
    view = run(
        "from IPython.display import clear_output, display\n"
        "handle = display('one', display_id=True)\nhandle.update('two')\nclear_output()"
    )
    assert view.updates == [{"text/plain": "'two'"}]
    assert view.cleared == 1


def test_plain_results_that_differ_are_shown_with_their_rank(run: Run) -> None:
    view = run("rank * 10")
    assert view.displays == [{"text/plain": "0"}]
    assert view.stdout == "[rank 1] 10\n"


def test_text_is_exactly_what_was_printed(run: Run) -> None:
    view = run("import sys\nprint('  a', end='')\nprint('b  ')\nsys.stdout.write('tail')\nNone")
    assert view.stdout == "  ab  \ntail"


def test_lines_that_differ_are_marked(run: Run) -> None:
    view = run("print('same')\nprint('mine', rank)")
    assert view.stdout == "same\nmine 0\n[rank 1] mine 1\n"


def test_stderr_is_stderr(run: Run) -> None:
    view = run("import sys\nprint('problem', file=sys.stderr)")
    assert (view.stdout, view.stderr) == ("", "problem\n")


def test_output_of_c_code_is_shown(run: Run) -> None:
    view = run("import os\nos.write(1, b'from C\\n')")
    assert view.await_stdout("from C\n")


def test_late_output_goes_to_the_cell_that_started_the_thread(session: Session, run: Run) -> None:
    first = RecordingView()
    session.run(
        "import threading\ngo = threading.Event()\n"
        "thread = threading.Thread(target=lambda: (go.wait(), print('late')))\nthread.start()",
        ranks=(0,),
        view=first,
    )
    second = run("go.set()\nthread.join()\nprint('second')", ranks=(0,))
    assert first.await_stdout("late\n")
    assert (first.stdout, second.stdout) == ("late\n", "second\n")


def test_a_flood_is_cut_and_said_to_be(run: Run) -> None:
    code = "for i in range(300_000): print('a line of a flood', i)\nprint('the end')"
    view = run(code, ranks=(0,))
    assert len(view.stdout) < 3_000_000
    assert "not shown" in view.stdout
    assert view.stdout.endswith("the end\n")


def test_a_rank_keeps_nothing_of_what_it_has_shown(session: Session, run: Run) -> None:
    view = run(
        "import sys, weakref\nclass Text(str): pass\nprinted = Text('some text')\n"
        "kept = weakref.ref(printed)\nsys.stdout.write(printed)\n"
        "display({'text/plain': printed}, raw=True)\ndel printed"
    )
    assert view.stdout == "some text"
    assert view.displays == [{"text/plain": "some text"}]
    run("import gc\ngc.collect()\ngone = kept() is None")
    assert session.pull("gone") == [True, True]


def test_errors_tell_the_line_of_the_cell_and_the_ranks(run: Run) -> None:
    with pytest.raises(CellError) as caught:
        run("x = 1\n1 / 0", header="%%ddp\n", execution_count=7)
    lines = caught.value._render_traceback_()
    text = "\n".join(lines)
    assert "In[7]" in text
    assert "line 3" in text
    assert lines[-1] == "ddp: both ranks failed with ZeroDivisionError: division by zero"


def test_one_rank_fails(run: Run) -> None:
    with pytest.raises(CellError) as caught:
        run("if rank == 1: raise ValueError('only here')")
    assert caught.value._render_traceback_()[-2:] == [
        "ddp: rank 1 failed with ValueError: only here",
        "ddp: rank 0 finished",
    ]
    assert str(caught.value) == "ValueError: only here (rank 1)"


def test_the_next_cell_works_at_once_after_a_failure(session: Session, run: Run) -> None:
    for _ in range(5):
        with pytest.raises(CellError):
            run("1 / 0")
        run("ok = True")
    assert session.pull("ok") == [True, True]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("%nosuchmagic\nprint('unreached')", "UsageError"),
        ("%%nosuchmagic\n1", "UsageError"),
        ("await __import__('asyncio').sleep(0)\n%nosuchmagic", "UsageError"),
    ],
)
def test_what_ipython_only_prints_fails_the_cell_too(run: Run, code: str, name: str) -> None:
    with pytest.raises(CellError, match=name):
        run(code)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_an_exception_group_fails_the_cell(run: Run) -> None:
    with pytest.raises(CellError, match="ExceptionGroup: e"):
        run("raise ExceptionGroup('e', [ValueError('v')])")


def test_losses_that_are_not_finite_are_drawn_as_they_are(run: Run) -> None:
    view = run("ddp.log(a=float('nan'))\nddp.log(a=float('inf'))\nddp.log(a=1.0)")
    (_, first), (_, second), (_, third) = view.curves["a"]
    assert math.isnan(first)
    assert (second, third) == (math.inf, 1.0)


def test_help_on_an_object_is_shown(run: Run) -> None:
    view = run("len?")
    assert any("number of items" in str(data) for data in view.displays)


def test_only_rank_0s_result_is_shown_if_asked(run: Run) -> None:
    assert run("rank", output="rank0").stdout == ""
    assert run("object()").stdout == ""


def test_sys_exit_ends_the_cell_and_not_the_rank(session: Session, run: Run) -> None:
    with pytest.raises(CellError, match="SystemExit"):
        run("import sys\nsys.exit(3)")
    assert session.pull("rank") == [0, 1]


def test_a_syntax_error_runs_nothing(session: Session, run: Run) -> None:
    run("touched = False")
    with pytest.raises(SyntaxError) as caught:
        run("touched = True\ndef f(:", header="%%ddp\n")
    assert caught.value.lineno == 3
    assert session.pull("touched") == [False, False]


def test_argv_builtins_and_handlers_do_not_leak(session: Session, run: Run) -> None:
    run(
        "import sys, builtins, signal\nargv = list(sys.argv)\nsys.argv.append('--flag')\n"
        "builtins.print = lambda *a, **k: None\nsignal.signal(signal.SIGTERM, lambda *a: None)\n"
        "changed = signal.getsignal(signal.SIGTERM)"
    )
    view = run(
        "import sys, signal\nargv2 = sys.argv\nprint('heard')\n"
        "leaked = signal.getsignal(signal.SIGTERM) is changed"
    )
    assert session.pull("argv2") == session.pull("argv") == [[""], [""]]
    assert session.pull("leaked") == [False, False]
    assert view.stdout == "heard\n"


def test_a_subset_of_ranks(session: Session, run: Run) -> None:
    run("where = 'both'")
    view = run("where = 'one'\nprint('here', rank)", ranks=(1,))
    assert session.pull("where") == ["both", "one"]
    assert view.stdout == "here 1\n"
    with pytest.raises(UsageError, match="there is no rank 5"):
        run("pass", ranks=(5,))


def test_changing_the_number_of_ranks_asks_for_a_restart(run: Run) -> None:
    with pytest.raises(StateError, match="%ddp restart -n 3"):
        run("pass", nproc=3)
    run("pass", nproc=2)


def test_a_timeout_stops_the_cell(session: Session, run: Run) -> None:
    with pytest.raises(CellTimeout, match=r"longer than 0\.5 s"):
        run("kept = 1\nimport time\nwhile True: time.sleep(0.01)", timeout_s=0.5)
    assert session.pull("kept") == [1, 1]


def test_a_timeout_does_not_hide_a_failure(run: Run) -> None:
    with pytest.raises(CellTimeout) as caught:
        run(
            "if rank == 1: raise ValueError('the cause')\nimport time\ntime.sleep(100)",
            timeout_s=0.5,
        )
    assert "ddp: rank 1 failed with ValueError: the cause" in caught.value._render_traceback_()


def test_a_failure_ends_the_cell_on_the_others(run: Run) -> None:
    with pytest.raises(CellError) as caught:
        run("if rank == 1: raise ValueError('early')\nimport time\ntime.sleep(100)")
    first, second = caught.value.story.lines()
    assert first == "rank 1 failed with ValueError: early"
    assert second.startswith("rank 0 was interrupted")


def test_collective_helpers_refuse_a_subset(run: Run) -> None:
    for call in ("mean(1)", "sum(1)", "gather(1)", "barrier()", "save(1, 'x')", "load('x')"):
        with pytest.raises(CellError, match="takes every rank") as caught:
            run(f"ddp.{call}", ranks=(0,))
        assert "line 1" in "\n".join(caught.value._render_traceback_())


def test_tracebacks_hold_no_frames_of_this_package(run: Run) -> None:
    with pytest.raises(CellError) as caught:
        run(
            "import torch\nloss = torch.ones(1, requires_grad=True).sum()\n"
            "loss.register_hook(lambda g: 1 / 0)\nloss.backward()"
        )
    assert "ddp_magic" not in "\n".join(caught.value._render_traceback_())


def test_a_cell_in_the_background(session: Session) -> None:
    view = RecordingView()
    handle = session.run("y = 5\nprint('behind')", view=view, background=True)
    assert handle is not None
    handle.result(timeout_s=20)
    assert (handle.done, view.stdout, view.finished) == (True, "behind\n", 1)
    failing = session.run("1 / 0", view=RecordingView(), background=True)
    assert failing is not None
    with pytest.raises(CellError):
        failing.result(timeout_s=20)
    assert "ddp: both ranks failed with ZeroDivisionError" in failing._view.stderr  # type: ignore[attr-defined]
    session.run("z = y", view=view)
    assert session.pull("z") == [5, 5]


def test_a_background_cell_can_be_stopped(session: Session, run: Run) -> None:
    handle = session.run(
        "import time\nwhile True: time.sleep(0.01)", view=RecordingView(), background=True
    )
    assert handle is not None
    handle.interrupt()
    assert handle.wait(10)
    assert isinstance(handle.error, CellInterrupted)
    assert run("print('next')").stdout == "next\n"


def test_classes_of_a_cell_can_be_pickled(run: Run) -> None:
    run(
        "import torch.nn as nn\nclass Tiny(nn.Module):\n"
        "    def __init__(self): super().__init__(); self.f = nn.Linear(3, 1)\n"
        "    def forward(self, x): return self.f(x)\n"
    )
    run(
        "import pickle\nagain = pickle.loads(pickle.dumps(Tiny()))\n"
        "assert type(again) is Tiny and Tiny.__module__ == '__main__'"
    )


def test_status_tells_every_rank(session: Session, run: Run) -> None:
    with pytest.raises(CellError):
        run("if rank == 1: 1 / 0")
    status = session.status()
    assert [(r.rank, r.device, r.state) for r in status.ranks] == [
        (0, "cpu", "ready"),
        (1, "cpu", "ready"),
    ]
    assert status.ranks[1].last_error == "ZeroDivisionError: division by zero"
    assert all(rank.rss_bytes for rank in status.ranks)
    assert str(status).startswith("the ranks are ready: 2 ranks, gloo, seed 0")


def test_an_error_around_a_cell_is_its_error_and_not_a_hang(run: Run) -> None:
    run(
        "import ddp_magic.rank.engine as engine\nbegin = engine.Rank._begin\n"
        "def broken(*args, **kwargs):\n"
        "    engine.Rank._begin = begin\n"
        "    raise RuntimeError('around the cell')\n"
        "engine.Rank._begin = broken"
    )
    with pytest.raises(CellError, match="around the cell"):
        run("pass")
    assert run("print('next')").stdout == "next\n"


_TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
_STEP = """
loss = model(torch.full((4, 2), float(rank + 1))).pow(2).mean()
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""


def test_a_model_trains_in_step_and_its_loss_is_drawn(session: Session, run: Run) -> None:
    view = run(_TRAIN + "for _ in range(5):" + _STEP.replace("\n", "\n    "))
    run("weight = model.weight.detach()")
    first, second = session.pull("weight")
    assert first.tobytes() == second.tobytes()
    assert [step for step, _ in view.curves["loss"]] == [1, 2, 3, 4, 5]
    assert view.notices == ["ddp: 2 ranks, gloo · model (Linear), 3 parameters"]


@pytest.mark.parametrize("apart", ["subset", "failure", "no-wrap"])
def test_ranks_that_came_apart_are_brought_together(session: Session, run: Run, apart: str) -> None:
    run(_TRAIN + _STEP)
    change = "with torch.no_grad(): model.weight += 1 + rank"
    if apart == "subset":
        run(change, ranks=(1,))
    elif apart == "no-wrap":
        run(change, wrap=False)
    else:
        with pytest.raises(CellError):
            run(f"{change}\nif rank == 1: 1 / 0")
    run(_STEP + "weight = model.weight.detach()")
    first, second = session.pull("weight")
    assert first.tobytes() == second.tobytes()


def test_a_subset_neither_averages_nor_waits(session: Session, run: Run) -> None:
    run(_TRAIN + _STEP)
    run(_STEP, ranks=(0,))
    run("weight = model.weight.detach()", wrap=False)
    first, second = session.pull("weight")
    assert first.tobytes() != second.tobytes()


def test_text_that_no_encoding_has_is_shown_escaped(run: Run) -> None:
    view = run("print('a\\ud800b')", output="rank0")
    assert view.stdout == "a\\ud800b\n"
    assert view.stderr == ""


def test_an_endless_recursion_is_told_briefly(run: Run) -> None:
    with pytest.raises(CellError) as caught:
        run("def again(): again()\nagain()")
    failure = caught.value.story.first
    assert failure is not None
    assert failure.name == "RecursionError"
    assert len("\n".join(failure.traceback).splitlines()) < 400


def test_waiting_for_gradients_is_noted_though_the_first_layers_are_frozen(run: Run) -> None:
    view = run(
        "import torch\nfrom torch import nn\nfrom ddp_magic.rank.attachment import Attachment\n"
        "net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))\nnet[0].requires_grad_(False)\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\nbefore = Attachment.waited_s\n"
        "for _ in range(3):\n    net(torch.ones(1, 2)).sum().backward()\n    optimizer.step()\n"
        "print(Attachment.waited_s > before)"
    )
    assert view.stdout == "True\n"


def test_output_comes_after_ipyparallel_has_failed_on_a_message(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("it has failed on a message")

    with monkeypatch.context() as patch:
        patch.setattr(Client._dispatch_iopub, "__wrapped__", fail)
        assert run("print('meanwhile')").stdout == "meanwhile\n"
    assert run("print('later')").stdout == "later\n"
    assert "it has failed on a message" in caplog.text
