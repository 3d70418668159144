"""`%ddp vars`, `%ddp diff` and `%%ddp --check` in a real kernel."""

from __future__ import annotations

from tests.notebook.conftest import Notebook


def test_vars(notebook: Notebook) -> None:
    notebook.run("%%ddp\nsame = 3\nown = rank")
    shown = notebook.run("%ddp vars")
    (plain,), (html,) = shown.data("text/plain"), shown.data("text/html")
    assert "2 variables on ranks 0-1, 1 differs" in plain
    assert "value 0 / 1" in html
    assert "own" not in notebook.run("%ddp vars sa*").data("text/plain")[0]
    assert "differs" not in notebook.run("%ddp vars own -r 1").data("text/plain")[0]
    used = notebook.run("table = get_ipython().run_line_magic('ddp', 'vars')\nprint(len(table.df))")
    assert used.text() == "4\n"
    failed = notebook.run("%ddp vars sane")
    assert failed.error["ename"] == "UsageError"
    assert "did you mean same?" in "\n".join(failed.error["traceback"])


def test_diff(notebook: Notebook) -> None:
    notebook.run("%%ddp\nimport torch\nheld = {'w': torch.zeros(2)}\nheld['w'][1] = rank")
    shown = notebook.run("%ddp diff held['w']")
    assert "largest difference 1" in shown.data("text/plain")[0]
    assert "rank 0 / rank 1" in shown.data("text/html")[0]
    asked = notebook.run("print(bool(get_ipython().run_line_magic('ddp', 'diff held')))")
    assert asked.text() == "False\n"


def test_check(notebook: Notebook) -> None:
    train = (
        "import torch\nmodel = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "model(torch.ones(1, 2)).sum().backward()\noptimizer.step()"
    )
    trained = notebook.run(f"%%ddp --check\n{train}")
    assert any("--check: model (Linear)" in line for line in trained.data("text/plain"))
    failed = notebook.run("%%ddp --check\nmodel.bias.data += rank")
    assert failed.error["ename"] == "ParityError"
    assert "bias is not the same on all ranks: rank 0 / rank 1" in failed.error["evalue"]


def test_the_session_in_python(notebook: Notebook) -> None:
    notebook.run("%%ddp\nown = rank + 1")
    assert notebook.run("session = %ddp session\nprint(session[1]['own'])").text() == "2\n"


def test_the_losses_of_all_ranks_and_not_those_of_others_in_the_curve(notebook: Notebook) -> None:
    trained = notebook.run(
        "%%ddp\nimport torch\nmodel = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(3):\n    loss = model(torch.ones(1, 2) * (rank + 1)).square().mean()\n"
        "    optimizer.zero_grad(); loss.backward(); optimizer.step()"
    )
    assert any("over 3 steps" in line for line in trained.data("text/plain"))
    shown = notebook.run("%ddp plot")
    assert "loss: rank 0 " in shown.data("text/plain")[0]
    assert "loss of each rank" in shown.data("text/html")[0]
    counted = notebook.run(
        "session = %ddp session\nprint([len(p) for p in session.plot().losses['loss'].values()])"
    )
    assert counted.text() == "[3, 3]\n"


def test_a_ddp_that_one_rank_alone_still_holds_is_not_taken_for_another(
    notebook: Notebook,
) -> None:
    cell = (
        "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
        "former, mine = DDP(torch.nn.Linear(2, 1)), DDP(torch.nn.Linear(2, 1))\n"
        "if rank == 0:\n    del former\n"
        "optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)\n"
        "mine(torch.ones(1, 2)).mean().backward()\n"
        "optimizer.step()"
    )
    output = notebook.run(f"%%ddp --check --no-plot\n{cell}")
    assert output.status == "ok", output.error
    said = "\n".join(output.data("text/plain"))
    assert "not the same on all ranks" not in said
    assert "DDP(Linear) number" in said
