"""``%ddp pull`` and ``%ddp push`` in a real kernel."""

from __future__ import annotations

from tests.notebook.conftest import Notebook


def test_there_and_back(notebook: Notebook) -> None:
    notebook.run("import numpy as np\nweights = np.arange(3.0)\ndef double(x): return 2 * x")
    pushed = notebook.run("%ddp push weights double")
    assert pushed.text() == "ddp: weights, double: set on ranks 0-1\n"
    notebook.run("%%ddp\nimport torch\nloss = torch.tensor(double(weights).sum() + rank)")
    both = "ddp: pulled from ranks 0-1, one value per rank: loss\n"
    assert notebook.run("%ddp pull loss").text() == both
    assert notebook.run("print([float(one) for one in loss])").text() == "[6.0, 7.0]\n"
    one = notebook.run("%ddp pull loss -r 1 --as mine")
    assert one.text() == "ddp: pulled from rank 1: mine (loss)\n"
    assert notebook.run("import sys\nprint(mine, 'torch' in sys.modules)").text() == "7.0 False\n"


def test_the_notebook_imports_no_torch_for_it(notebook: Notebook) -> None:
    notebook.run(
        "%%ddp\nimport torch\nheld = {'w': torch.ones(300_000), 'dtype': torch.float16}\n"
        "uses = lambda: torch.ones(1)"
    )
    assert notebook.run("%ddp pull held").status == "ok"
    refused = notebook.run("%ddp pull uses -r 0").error["evalue"]
    assert "uses needs torch, which this notebook has not imported" in refused
    assert notebook.run("import sys\nprint('torch' in sys.modules)").text() == "False\n"


def test_several_are_set_or_none(notebook: Notebook) -> None:
    notebook.run("%%ddp\nfirst = 1\ngone = (i for i in [])")
    output = notebook.run("%ddp pull first gone")
    assert output.error["evalue"].startswith("ranks 0-1: gone (a generator) cannot travel")
    assert notebook.run("print('first' in globals())").text() == "False\n"
    near = notebook.run("lossy = 1\n%ddp push losssy")
    assert "did you mean lossy?" in near.error["evalue"]


def test_a_cell_in_the_background_is_looked_into_and_ended(notebook: Notebook) -> None:
    notebook.run("%%ddp\nimport time\nsteps, go = 0, True")
    notebook.run("%%ddp -b\nwhile go: steps += 1; time.sleep(0.001)")
    assert notebook.run("%ddp pull steps -r 0").status == "ok"
    assert notebook.run("go = False\n%ddp push go").status == "ok"
    assert notebook.run("%%ddp\nprint(go)").text() == "False\n"


def test_a_notebooks_own_tensors_arrive_as_such(notebook: Notebook) -> None:
    """The last one here: it imports torch in the notebook."""
    notebook.run("import torch\nt = torch.eye(2).bfloat16()\np = torch.nn.Linear(2, 1)")
    assert notebook.run("%ddp push t p").status == "ok"
    shown = notebook.run(
        "%%ddp\nddp.print(t.dtype, t.tolist(), type(p).__name__, type(p.weight).__name__,"
        " p.weight.requires_grad)"
    )
    words = "torch.bfloat16 [[1.0, 0.0], [0.0, 1.0]] Linear Parameter True\n"
    assert shown.text() == words
