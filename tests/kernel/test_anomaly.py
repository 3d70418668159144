"""``--detect-anomaly`` names where a value that is not finite first appeared, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_magic import CellError, Session
from ddp_magic.core.failures import RankFailure
from ddp_magic.core.options import CellOptions, Program
from ddp_magic.testing import RecordingView

_MODEL = """
import torch
from torch import nn
from torch.nn import functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())])
        self.head = nn.Linear(4, 1)
        self.shift = 0.0
    def forward(self, x):
        for layer in self.encoder:
            x = layer(x)
        return self.head(x if not self.shift else torch.log(x - self.shift))
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
"""
_LOOP = """\
for step in range(3):
    x = torch.rand(8, 4)
    {before}
    loss = model(x).mean()
    {after}
    optimizer.zero_grad()
    loss.backward()
    {last}
    optimizer.step()
"""


def run(session: Session, code: str, model: str = _MODEL) -> RecordingView:
    view = RecordingView()
    session.run(model, view=RecordingView())
    session.run(code, view=view, header="%%ddp --detect-anomaly\n", detect_anomaly=True)
    return view


def fail(session: Session, code: str, model: str = _MODEL) -> RankFailure:
    """Run a cell that fails, and return the first failure."""
    with pytest.raises(CellError) as caught:
        run(session, code, model)
    first = caught.value.story.first
    assert first is not None
    assert first.name == "AnomalyError", "\n".join(first.traceback)
    return first


def loop(before: str = "pass", after: str = "pass", last: str = "pass") -> str:
    return _LOOP.format(before=before, after=after, last=last)


@pytest.fixture(autouse=True)
def _leaves_nothing_hooked(session: Session) -> Iterator[None]:
    yield
    code = (
        "import torch, torch.nn.modules.module as hooked\n"
        "from torch.optim import optimizer as stepping\n"
        "left = (len(hooked._global_forward_hooks), 'anomaly' in torch.autograd.backward.__code__"
        ".co_filename, 'anomaly' in torch.amp.GradScaler.scale.__code__.co_filename, any('anomaly'"
        " in h.__code__.co_filename for h in stepping._global_optimizer_post_hooks.values()))\n"
        "x = torch.nn.Linear(1, 1)(torch.full((1, 1), float('nan')))"
    )
    session.run(code, view=RecordingView())
    assert session.pull("left") == [(0, False, False, False)] * 2


def test_a_cell_that_is_sound_trains_as_without(session: Session) -> None:
    run(session, loop())
    looked_at = _weights(session)
    session.run(_MODEL, view=RecordingView())
    session.run(loop(), view=RecordingView())
    assert _weights(session) == looked_at


def _weights(session: Session) -> list[list[float]]:
    code = "weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()"
    session.run(code, view=RecordingView())
    pulled: list[list[float]] = session.pull("weights")
    return pulled


def test_data_of_one_rank(session: Session) -> None:
    first = fail(session, loop("if rank == 1 and step == 1: x[3, 2] = float('nan')"))
    assert first.rank == 1
    assert first.headline == (
        "AnomalyError: the input of model (Net) (argument 1) has 1 NaN of 32 values"
        " (batch index 3 of 8, step 2, line 5)."
    )
    assert "it is [8, 4] float32, from " in first.message


def test_a_nested_module(session: Session) -> None:
    damage = "if step == 1 and rank == 0: model.encoder[1][0].bias.data[1] = float('nan')"
    first = fail(session, loop(damage))
    assert first.rank == 0
    assert "the output of model.encoder.1.0 (Linear) has 8 NaN of 32 values" in first.headline
    assert "its input was finite" in first.headline
    assert "its parameter bias has 1 NaN of 4 values" in first.message
    assert "(step 2, line 12 of In[" in first.headline


def test_code_between_modules(session: Session) -> None:
    first = fail(session, loop("model.shift = 100.0 * step * rank"))
    assert first.rank == 1
    assert "what model (Net) gives to model.head (Linear) has 32 NaN" in first.headline
    assert "(step 2, line 13 of In[" in first.headline


def test_a_model_held_by_a_function(session: Session) -> None:
    code = (
        "def train(net, batch):\n    return net(batch)\n"
        "train(Net(), torch.full((2, 4), float('nan')))"
    )
    assert "the input of net (Net) (argument 1)" in fail(session, code).headline


def test_a_loss_of_the_users_own(session: Session) -> None:
    first = fail(session, loop(after="loss = loss + torch.log(torch.tensor(1.0 - rank))"))
    assert first.rank == 1
    assert "loss is -inf (step 1, line 8)" in first.headline


def test_an_infinite_output_is_remembered(session: Session) -> None:
    code = (
        "class Log(nn.Module):\n    def forward(self, x): return torch.log(x * 0)\n"
        "log = Log()\nscore = log(model(torch.rand(8, 4))).mean()\nscore.backward()"
    )
    first = fail(session, code)
    assert "score is -inf" in first.headline
    assert "the first infinite output was that of log (Log): 8 infinite of 8" in first.message


def test_a_gradient_is_known_before_it_is_averaged(session: Session) -> None:
    bad = "if rank: loss = loss + (model.head.weight * 0).abs().sum().sqrt()"
    first = fail(session, loop(after=bad))
    assert first.rank == 1
    assert "the gradient of model.head.weight has 4 NaN of 4 values" in first.headline
    assert "(step 1, line 8); the loss was finite" in first.headline


def test_an_exploding_gradient(session: Session) -> None:
    code = (
        "w = nn.Parameter(torch.zeros(3))\n"
        "((w * 1e30).sum() * 1e30 if rank else w.sum()).backward()"
    )
    first = fail(session, code)
    assert (first.rank, first.name) == (1, "AnomalyError")
    assert "the gradient of w has 3 infinite of 3 values" in first.headline
    assert "clip the gradients" in first.message


def test_a_learning_rate_that_is_too_high(session: Session) -> None:
    first = fail(session, loop("optimizer.param_groups[0]['lr'] = 3e38", "loss = loss * 100"))
    assert "after optimizer.step() (step 1, line 10)" in first.headline
    assert "infinite of" in first.headline
    assert "the learning rate: 3e+38" in first.message


def test_half_precision_that_overflows(session: Session) -> None:
    code = (
        "half = nn.Linear(4, 2).half()\nnn.init.constant_(half.weight, 6e4)\n"
        "with torch.no_grad(): half(torch.ones(1, 4).half())"
    )
    first = fail(session, code)
    assert "the output of half (Linear) has 2 infinite of 2 values" in first.headline
    assert "float16 ends at 65,504" in first.message


def test_the_users_own_ddp(session: Session) -> None:
    code = (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "wrapped = DDP(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))\n"
        "wrapped(torch.rand(2, 4)).sum().backward()\n"
        "wrapped(torch.full((2, 4), float('nan') if rank else 1.0)).sum().backward()"
    )
    first = fail(session, code)
    assert first.rank == 1
    assert "the input of wrapped (DistributedDataParallel)" in first.headline


def test_a_scaler_that_finds_its_scale_is_left_to_it(session: Session) -> None:
    """The gradient overflows at first, and so does the scaled loss."""
    code = (
        "w = nn.Parameter(torch.ones(3))\nsgd = torch.optim.SGD([w], 1e-12)\n"
        "scaler = torch.amp.GradScaler('cpu', init_scale=2.0 ** 100)\nmoved = []\n"
        "for step in range(10):\n"
        "    loss = (w * 1e10).sum()\n"
        "    scaler.scale(loss).backward()\n"
        "    scaler.step(sgd)\n    scaler.update()\n    sgd.zero_grad()\n"
        "    moved.append((w < 1).any().item())\n"
    )
    run(session, code)
    moved = session.pull("moved", ranks=0)
    assert (moved[0], moved[-1]) == (False, True)


def test_a_loss_is_looked_at_before_it_is_scaled(session: Session) -> None:
    code = (
        "scaler = torch.amp.GradScaler('cpu')\n"
        "total = model(torch.rand(8, 4)).mean() - torch.log(torch.tensor(1.0 - rank))\n"
        "scaler.scale(total).backward()"
    )
    first = fail(session, code)
    assert (first.rank, "total is inf (step 1, line 4)" in first.headline) == (1, True)


def test_a_scaler_that_has_no_scale_left(session: Session) -> None:
    code = (
        "w = nn.Parameter(torch.zeros(3))\nsgd = torch.optim.SGD([w], 0.1)\n"
        "scaler = torch.amp.GradScaler('cpu', init_scale=8.0)\n"
        "for step in range(8):\n"
        "    scaler.scale(w.sum() + (w * 0).abs().sum().sqrt()).backward()\n"
        "    scaler.step(sgd)\n    scaler.update()\n    sgd.zero_grad()\n"
    )
    first = fail(session, code)
    assert "the gradient of w has 3 NaN of 3 values" in first.headline


def test_what_may_well_be_infinite_or_odd_is_no_anomaly(session: Session) -> None:
    """Masks, and what is no floating-point tensor with values."""
    code = (
        "class Masked(nn.Module):\n"
        "    def forward(self, x, mask, note=None):\n"
        "        return x.masked_fill(mask, float('-inf'))\n"
        "class Mixed(nn.Module):\n"
        "    def forward(self, x, **more):\n"
        "        empty = torch.empty(0)\n"
        "        return {'x': [x, (x > 0)], 'none': None, 'n': 3, 'empty': empty,"
        " 'c': torch.complex(x, x), 'i': x.long(), 's': x.to_sparse()}\n"
        "attention = nn.MultiheadAttention(4, 2, batch_first=True)\n"
        "softmax, masked, mixed = nn.Softmax(-1), Masked(), Mixed()\n"
        "adam = torch.optim.Adam([*model.parameters(), *attention.parameters()])\n"
        "causal = torch.full((5, 5), float('-inf')).triu(1)\n"
        "for step in range(2):\n"
        "    x = torch.rand(2, 5, 4)\n"
        "    y, _ = attention(x, x, x, attn_mask=causal)\n"
        "    weights = softmax(masked(y, causal[:, :4] < 0, note='text'))\n"
        "    parts = mixed(y, more=torch.arange(3))\n"
        "    loss = weights.sum() + model(y).mean() + parts['x'][0].sum()\n"
        "    loss.backward()\n    adam.step()\n    adam.zero_grad()\n"
        "with torch.no_grad(): model(torch.rand(2, 4))\n"
        "torch.vmap(model)(torch.rand(3, 4))\n"
        "done = True"
    )
    run(session, code)
    assert session.pull("done") == [True, True]


def test_checkpoints_and_sparse_gradients(session: Session) -> None:
    code = (
        "from torch.utils.checkpoint import checkpoint\n"
        "table = nn.Embedding(10, 4, sparse=True)\n"
        "sgd = torch.optim.SGD([*table.parameters(), *model.parameters()], 0.1)\n"
        "for reentrant in (True, False):\n"
        "    x = table(torch.tensor([1, 2, 2]))\n"
        "    checkpoint(model, x, use_reentrant=reentrant).mean().backward()\n"
        "    sgd.step()\n    sgd.zero_grad()\n"
        "done = True"
    )
    run(session, code)
    assert session.pull("done") == [True, True]


def test_some_ranks_alone_and_without_wrapping(session: Session) -> None:
    session.run(_MODEL, view=RecordingView())
    for options in ({"ranks": (1,)}, {"wrap": False}):
        with pytest.raises(CellError, match="the input of model"):
            session.run(
                "model(torch.full((2, 4), float('nan'))).sum().backward()",
                view=RecordingView(),
                detect_anomaly=True,
                **options,
            )


def test_a_compiled_model(session: Session) -> None:
    """It runs as if it were not, so that what is within can be looked at."""
    code = (
        "compiled = torch.compile(model, backend='eager', fullgraph=True)\n"
        "sgd = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for step in range(2):\n"
        "    x = torch.full((8, 4), float('nan') if step and rank else 1.0)\n"
        "    compiled(x).sum().backward()\n    sgd.step()\n    sgd.zero_grad()\n"
    )
    first = fail(session, code)
    assert first.rank == 1
    assert "the input of model (Net) (argument 1) has 32 NaN of 32 values" in first.headline
    assert "(step 2, line 6)" in first.headline
    session.run("stance = torch._dynamo.eval_frame._stance.stance", view=RecordingView())
    assert session.pull("stance") == ["default", "default"]


def test_a_script(session: Session, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "def main():\n"
        "    net = torch.nn.Linear(2, 1)\n"
        "    net(torch.full((2, 2), float('nan')))\n"
        "main()\n"
    )
    options = CellOptions(detect_anomaly=True)
    with pytest.raises(CellError) as caught:
        session.run_program(Program(str(script)), options, view=RecordingView())
    assert "the input of net (Linear) (argument 1) has 4 NaN of 4 values" in str(caught.value)
    assert "line 4 of train.py" in str(caught.value)
