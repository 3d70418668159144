"""Looking into the ranks' variables, and holding them against each other."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from ddp_magic import CellError, CellInterrupted, ParityError, Session, UsageError
from ddp_magic.testing import RecordingView
from tests.kernel.conftest import Run

_TRAIN = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
def train():
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 2)).square().mean().backward()
        optimizer.step()
train()
"""
_STUCK = """
class Stuck:
    def refuse(self, *args):
        import os
        os._exit(3)
    __repr__ = __getattr__ = __len__ = __iter__ = __eq__ = __sizeof__ = refuse
    __hash__ = None
stuck = Stuck()
"""
_DEADLINE_S = 20


def test_the_steps_at_the_end_of_a_short_cell_count(session: Session, run: Run) -> None:
    run(_TRAIN)
    run(
        "import time\ntrain()\npulse = get_ipython().kernel.life.pulse\n"
        "while not pulse._sent: time.sleep(0.01)\n"
        "with pulse._lock: pass\n"  # until that one was
        "train()"
    )
    assert sorted(session.plot().times) == [0, 1]


def test_variables_side_by_side(session: Session, run: Run) -> None:
    run(
        f"import torch\nsame = 3\nown = rank + 1\nt = torch.ones(2 + rank)\n{_STUCK}"
        "w = torch.zeros(4)\nw[2] = rank\ndef function(): pass\nif rank: only = 'x'"
    )
    found = session.vars()
    how = {row.name: row.how for row in found}
    assert how["same"] == how["stuck"] == ""
    assert how["own"] == "value 1 / 2"
    assert how["t"] == "shape (2,) / (3,)"
    assert how["w"] == "same shape, other values"
    assert how["only"] == "only on rank 1"
    assert not {"function", "torch", "Stuck", "In", "_", "rank", "ddp"} & how.keys()
    assert [row.name for row in found][:4] == ["only", "own", "t", "w"]
    assert [row.name for row in session.vars("fun*")] == ["function"]
    with pytest.raises(UsageError, match=r"sane: .* on ranks 0-1\ndid you mean same"):
        session.vars("sane")


def test_one_ranks_view(session: Session, run: Run) -> None:
    run("own = rank + 1\nimport torch\nt = torch.ones(2)")
    assert session[1]["own"] == 2
    assert np.array_equal(session[0]["t"], [1, 1])
    assert session[1].vars("own")["own"].on[1].text == "2"
    assert [one["own"] for one in session] == [1, 2]
    with pytest.raises(UsageError, match="there is no rank 2"):
        session[2]
    with pytest.raises(UsageError, match=r"session\['own'\]: give a rank"):
        session["own"]  # type: ignore[index]
    with pytest.raises(UsageError, match="no variable 'nowhere'"):
        session[0]["nowhere"]


def test_equal_values_are_bit_identical(session: Session, run: Run) -> None:
    run(f"{_TRAIN}\nstate = model.state_dict()\nnested = [1, {{'a': torch.ones(3)}}]\n{_STUCK}")
    for name in ("model", "optimizer", "state", "nested", "model[0].weight", "stuck"):
        found = session.diff(name)
        assert found, found
        assert "bit-identical on ranks 0-1" in str(found)


def test_the_first_that_differs_and_by_how_much(session: Session, run: Run) -> None:
    run(f"{_TRAIN}\nmodel[2].weight.data[0, 1] = 1.0 + rank", wrap=False)
    found = session.diff("model")
    assert not found
    (part,) = found.parts
    assert (part.name, part.groups) == ("2.weight", ((0,), (1,)))
    assert part.distance is not None
    assert (part.distance.largest, part.distance.differing) == (1.0, 1)
    assert "largest difference 1 (relative 0.5), in 1 of 3 elements" in str(found)
    assert session.diff("model", ranks=(1,))


def test_numbers_bits_kinds_and_presence(session: Session, run: Run) -> None:
    run(
        "import torch\nx = 1.5 + rank\nzero = torch.zeros(3) * (-1 if rank else 1)\n"
        "kind = '3' if rank else 3\nlong = list(range(100 + rank))\n"
        "half = torch.ones(4).bfloat16() * (1 + rank)\nif rank: only = 1"
    )
    assert "value 1.5 / 2.5: by 1 (relative 0.4)" in str(session.diff("x"))
    assert "largest difference 0: other bits" in str(session.diff("zero"))
    assert "type int / str" in str(session.diff("kind"))
    assert "length 100 / 101" in str(session.diff("long"))
    assert session.diff("half").largest == 1.0
    assert "only on rank 1" in str(session.diff("only"))
    for name in ("nowhere", "half[77]", "half.nowhere"):
        with pytest.raises(UsageError, match="there is no"):
            session.diff(name)


def test_a_large_tensor_that_drifted_everywhere_is_sampled(session: Session, run: Run) -> None:
    run("import torch\ntorch.manual_seed(rank)\nlarge = torch.randn(4_000_000)")
    found = session.diff("large")
    distance = found.parts[0].distance
    assert distance is not None
    assert distance.is_sampled
    assert 5 < found.largest < 12
    assert "at least" in str(found)
    assert len(str(found)) < 500


def test_it_answers_while_a_cell_runs(session: Session, run: Run) -> None:
    run("import torch\nt = torch.zeros(3) + rank\nsame = torch.ones(3)")
    view = RecordingView()
    cell = session.run("print('begun')\nimport time\ntime.sleep(60)", view=view, background=True)
    assert cell is not None
    assert view.await_stdout("begun")
    assert session.vars()["t"].how == "same shape, other values"
    assert session.diff("same")
    found = session.diff("t")
    assert found.largest == 1.0
    assert "a cell is running" in str(found)
    session.interrupt()
    with pytest.raises(CellInterrupted):
        cell.result(_DEADLINE_S)


def test_check_finds_what_the_ranks_hold_apart(session: Session, run: Run) -> None:
    view = run(_TRAIN, check=True)
    assert any("--check: model (Sequential), Adam of" in line for line in view.notices)
    drifted = r"model \(Sequential\): 2.bias is not the same on all ranks: rank 0 / rank 1"
    with pytest.raises(ParityError, match=drifted):
        run("model[2].bias.data += rank", check=True)
    run("train()", check=True)
    with pytest.raises(ParityError, match=r"1.running_mean \(buffer\).*\n.*model.eval"):
        run("_ = model(torch.randn(8, 2) + rank)", check=True)
    run("train()", check=True)
    with pytest.raises(ParityError, match=r"\['lr'\] is not the same"):
        run("optimizer.param_groups[0]['lr'] *= 1 + rank", check=True)


def test_a_model_that_one_rank_still_holds_is_not_taken_for_its_successor(
    session: Session, run: Run
) -> None:
    """As the frames of a traceback hold one, which only the rank that failed has."""
    run(f"{_TRAIN}if rank == 1: kept, kept_optimizer = model, optimizer")
    run(_TRAIN)
    run("train()", check=True)
    run("if rank == 1: weights = kept[0].weight.tolist()")
    with pytest.raises(CellError, match="ValueError"):
        run("if rank == 0: raise ValueError")
    view = run("train()", check=True)
    assert any("--check: model (Sequential), Adam of model" in line for line in view.notices)
    run("if rank == 1: assert kept[0].weight.tolist() == weights")


def test_a_rank_that_died_is_told_of() -> None:
    with Session(nproc=3, seed=0) as session:
        session.run("x = 3\npid = __import__('os').getpid()", view=RecordingView())
        os.kill(session[1]["pid"], signal.SIGKILL)
        until_s = time.monotonic() + _DEADLINE_S
        while 1 not in (table := session.vars()).missing:
            assert time.monotonic() < until_s
        assert table.ranks == (0, 2)
        assert table.missing[1].startswith("rank 1 was killed")
        found = session.diff("x")
        assert not found.equal
        assert "bit-identical on ranks 0, 2" in str(found)
        assert "not compared: rank 1 was killed" in str(found)


@pytest.mark.parametrize(
    "value",
    [
        "pd.DataFrame({'loss': [float(rank)] * 3, 'name': ['a', 'b', 'c']})",
        "pd.DataFrame({f'column_{rank}': [1.0]})",
        "[pd.Series([1.0, rank])]",
        "type('Config', (), {'__module__': '__main__', 'lr': 0.1 * (rank + 1)})",
        "RuntimeError(f'rank {rank}')",
        "slice(rank)",
    ],
)
def test_what_differs_is_never_called_alike(session: Session, run: Run, value: str) -> None:
    run(f"import pandas as pd\nimport torch\nheld = {value}")
    assert not (found := session.diff("held")) or not found.is_whole
    assert session.vars("held")["held"].differs


@pytest.mark.parametrize(
    "value",
    [
        "pd.DataFrame({'loss': [1.0, 2.0], 'name': ['a', 'b']})",
        "type('Config', (), {'__module__': '__main__', 'lr': 0.1})",
        "RuntimeError('bad')",
        "dict([('a', 1), ('b', 2)][::-1 if rank else 1])",
    ],
)
def test_what_is_alike_is_called_so(session: Session, run: Run, value: str) -> None:
    run(f"import pandas as pd\nheld = {value}")
    found = session.diff("held")
    assert found
    assert found.is_whole
    assert not session.vars("held")["held"].differs


def test_a_process_behind_an_iterator_is_not_looked_into(session: Session, run: Run) -> None:
    run(
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "held = iter(DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4))"
    )
    assert "_SingleProcessDataLoaderIter cannot be looked into" in str(session.diff("held"))


def test_a_tensor_that_needs_no_gradient_on_a_rank_differs(session: Session, run: Run) -> None:
    run("import torch\nheld = torch.ones(2, requires_grad=rank == 0)")
    assert "requires_grad True / False" in str(session.diff("held"))
