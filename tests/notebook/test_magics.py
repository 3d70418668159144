"""The magics as a person at a notebook meets them."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.notebook.conftest import Message, Notebook


def test_status_is_one_table(notebook: Notebook) -> None:
    output = notebook.run("%ddp status")
    (status,) = output.data("text/plain")
    assert status.startswith("the ranks are ready: 2 ranks, gloo, seed 1")
    (table,) = output.data("text/html")
    assert table.count("<tr>") == 3


def test_starting_again_says_that_they_run(notebook: Notebook) -> None:
    assert "2 ranks on CPU, gloo" in notebook.run("%ddp start").text()


def test_a_cell_prints_and_leaves_no_panel(notebook: Notebook) -> None:
    output = notebook.run("%%ddp\nprint('hello from', rank)")
    assert output.text() == "hello from 0\n[rank 1] hello from 1\n"
    assert [o["msg_type"] for o in output.outputs] == ["stream"] * len(output.outputs)


def test_output_streams_while_the_cell_runs(notebook: Notebook) -> None:
    """The first line is seen, and answered, before the cell goes on."""
    notebook.run(
        "%%ddp\nimport pathlib, tempfile, time\n"
        "flag = pathlib.Path(ddp.gather(tempfile.mktemp())[0])"
    )
    flag = (
        notebook.run(
            "get_ipython().magics_manager.registry['DdpMagics'].session"
            ".pull('flag', ranks=0).as_posix()"
        )
        .data("text/plain")[0]
        .strip("'")
    )

    def answer(message: Message) -> None:
        if "first" in message["content"].get("text", ""):
            open(flag, "w").close()

    output = notebook.run(
        "%%ddp\nprint('first')\nwhile not flag.exists(): time.sleep(0.01)\n"
        "ddp.barrier()\nddp.print('second')\nflag.unlink(missing_ok=True)",
        on_output=answer,
    )
    assert output.text() == "first\nsecond\n"


def test_a_failing_cell_fails_like_any_cell(notebook: Notebook) -> None:
    output = notebook.run("%%ddp\n\n1 / 0")
    assert output.status == "error"
    assert output.error["ename"] == "CellError"
    assert output.error["evalue"] == "ZeroDivisionError: division by zero (both ranks)"
    traceback = "\n".join(output.error["traceback"])
    assert "line 3" in traceback
    assert "ddp_magic/" not in traceback


def test_lines_are_counted_from_the_top_of_the_cell_below_another_magic(
    notebook: Notebook,
) -> None:
    traceback = "\n".join(notebook.run("%%time\n%%ddp\n1 / 0").error["traceback"])
    assert "line 3" in traceback
    assert "# %%time" in traceback


def test_a_syntax_error_is_shown_with_its_line_alone(notebook: Notebook) -> None:
    output = notebook.run("%%ddp\nx = 1\ndef f(:")
    traceback = "\n".join(output.error["traceback"])
    assert "line 3" in traceback
    assert "def f(:" in traceback
    assert "SyntaxError: invalid syntax" in traceback
    assert "interactiveshell" not in traceback


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("%%ddp -r 5\n1", "-r/--ranks 5: there is no rank 5"),
        ("%%ddp -r 2-\n1", "-r/--ranks 2-"),
        ("%%ddp -r a\n1", "-r/--ranks a"),
        ("%%ddp -n 0\n1", "-n/--nproc 0"),
        ("%%ddp -n 3\n1", "%ddp restart -n 3"),
        ("%%ddp --no-wrp\n1", "did you mean --no-wrap?"),
        ("%%ddp --batch all\n1", "--batch all"),
        ("%ddp sttus", "did you mean status?"),
    ],
)
def test_bad_options_name_the_option_and_the_fix(notebook: Notebook, cell: str, words: str) -> None:
    output = notebook.run(cell)
    assert output.status == "error"
    assert words in output.error["evalue"]
    assert notebook.run("%%ddp\nprint('works')").text() == "works\n"


def test_a_name_of_the_notebooks_is_known_as_such(notebook: Notebook) -> None:
    notebook.run("mine = 1")
    output = notebook.run("%%ddp\nprint(mine)")
    assert "`mine` is defined in the notebook, not on the ranks" in output.error["traceback"][-1]


def test_stop_interrupts_the_cell_and_keeps_the_variables(notebook: Notebook) -> None:
    def stop(message: Message) -> None:
        if "begun" in message["content"].get("text", ""):
            notebook.interrupt()

    output = notebook.run(
        "%%ddp\nimport time\nkept = 'kept'\nprint('begun', flush=True)\n"
        "while True: time.sleep(0.01)",
        on_output=stop,
    )
    assert output.status == "error"
    assert output.error["ename"] == "CellInterrupted"
    assert "line 5" in "\n".join(output.error["traceback"])
    assert notebook.run("%%ddp\nprint(kept)").text() == "kept\n"


def test_stop_pressed_twice_leaves_the_session_usable(notebook: Notebook) -> None:
    def stop(message: Message) -> None:
        if "begun" in message["content"].get("text", ""):
            notebook.interrupt()
            notebook.interrupt()

    output = notebook.run("%%ddp\nprint('begun', flush=True)\nwhile True: pass", on_output=stop)
    assert output.status == "error"
    assert notebook.run("%%ddp\nprint('usable')").text() == "usable\n"


def test_losses_are_named_as_in_the_cell(notebook: Notebook) -> None:
    output = notebook.run(
        "%%ddp\nimport torch\nw = torch.nn.Parameter(torch.ones(2))\n"
        "for _ in range(3):\n    gen, critic = w.sum(), (w * 2).sum()\n"
        "    gen.backward()\n    critic.backward()"
    )
    summary = output.data("text/plain")[-1]
    assert "gen 2 → 2, critic 4 → 4 over 3 steps" in summary


def test_a_result_stands_below_what_all_ranks_printed(notebook: Notebook) -> None:
    output = notebook.run("%%ddp\nprint('rank', rank)\n42")
    kinds = [o["msg_type"] for o in output.outputs]
    assert kinds[-1] == "display_data"
    assert output.text() == "rank 0\n[rank 1] rank 1\n"


def test_streams_keep_their_order(notebook: Notebook) -> None:
    output = notebook.run(
        "%%ddp\nimport sys\nfor i in range(3):\n    print('out', i, flush=True)\n"
        "    print('err', i, file=sys.stderr, flush=True)"
    )
    texts = "".join(o["content"]["text"] for o in output.outputs)
    assert texts == "out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2\n"


def test_display_of_a_rank_is_shown_in_the_cell(notebook: Notebook) -> None:
    output = notebook.run("%%ddp\nfrom IPython.display import HTML\nHTML('<b>hello</b>')")
    assert output.data("text/html") == ["<b>hello</b>"]


def test_help_reads_well(notebook: Notebook) -> None:
    assert "%ddp restart" in notebook.run("%ddp").text()
    assert "--no-shard" in notebook.run("%ddp").text()
    assert "--no-shard" in notebook.run("%%ddp -h\n1").text()
    assert "--seed" in notebook.run("%ddp start -h").text()


def test_the_whole_life(cold_notebook: Notebook) -> None:
    """Start by a cell, restart, unload with ranks running, load again, stop."""
    notebook = cold_notebook
    assert notebook.run("%ddp status").data("text/plain") == ["no ranks have been started"]
    started = notebook.run("%%ddp -n 1\nimport torch\nx = torch.ones(1)")
    assert "1 rank on CPU, gloo" in started.data("text/plain")[-1]
    assert notebook.run("import sys\nprint('torch' in sys.modules)").text() == "False\n"
    assert "1 rank on CPU" in notebook.run("%ddp restart").data("text/plain")[-1]
    notebook.run("ranks = 2")
    assert "2 ranks on CPU" in notebook.run("%ddp restart -n {ranks}").data("text/plain")[-1]
    assert "NameError" in notebook.run("%%ddp\nx").error["evalue"]
    assert notebook.run("%unload_ext ddp_magic").status == "ok"
    left = notebook.run("import psutil\nprint(psutil.Process().children(recursive=True))")
    assert left.text() == "[]\n"
    assert notebook.run("%ddp status").status == "error"
    assert notebook.run("%load_ext ddp_magic").status == "ok"
    notebook.run("%ddp start -n 1")
    assert notebook.run("%ddp stop").status == "ok"
    assert notebook.run("%ddp status").data("text/plain") == ["the ranks have been stopped"]


def test_run_all_stops_at_a_failing_cell() -> None:
    cells = ["%load_ext ddp_magic", "%%ddp -n 1\nraise ValueError('here')", "print('not reached')"]
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with pytest.raises(CellExecutionError, match="ValueError: here"):
        NotebookClient(nb, timeout=90, kernel_name="python3").execute()
    assert nb.cells[2].outputs == []
