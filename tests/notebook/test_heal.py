"""A rank is lost, and brought back, in a notebook."""

from __future__ import annotations

from tests.notebook.conftest import Notebook


def test_a_rank_is_brought_back(cold_notebook: Notebook) -> None:
    notebook = cold_notebook
    notebook.run("%ddp start -n 2 --seed 1")
    assert "no rank is dead" in notebook.run("%ddp heal").data("text/plain")[0]
    notebook.run(
        "%%ddp\nimport os, signal, torch\nfrom torch import nn\n"
        "model = nn.Linear(2, 1)\noptimizer = torch.optim.Adam(model.parameters(), 0.1)\n"
        "def train():\n    for _ in range(3):\n        optimizer.zero_grad()\n"
        "        model(torch.ones(4, 2)).square().mean().backward()\n        optimizer.step()\n"
        "train()"
    )
    failed = notebook.run("%%ddp\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\nddp.sum(1)")
    assert failed.status == "error"
    told = "\n".join(failed.error["traceback"])
    assert "`%ddp heal` brings it back with rank 0's variables" in told
    refused = notebook.run("%%ddp\ntrain()")
    assert "%ddp heal" in refused.error["evalue"]
    assert "a rank has died" in notebook.run("%ddp status").data("text/plain")[0]
    healed = notebook.run("%ddp heal").data("text/plain")
    assert healed[-1].startswith("ddp: rank 1 is back with rank 0's variables (")
    assert "1 model and 1 optimizer) in" in healed[-1]
    assert "the ranks are ready" in notebook.run("%ddp status").data("text/plain")[0]
    shown = notebook.run("%%ddp --output all\ntrain()\nprint(model.weight.tolist())")
    first, second = (line.partition("] ")[2] for line in shown.text().splitlines())
    assert first == second
    assert "replace dead ranks" in notebook.run("%ddp heal -h").text()
