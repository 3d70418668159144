"""How much is reduced: the gradients that a backward makes, each once, and nothing else."""

from __future__ import annotations

import pytest

from tests.rank.harness import RankFailed, run_each
from tests.rank.parity import PRELUDE
from tests.rank.patterns import NET

_PROFILE = """
from torch.profiler import profile, ProfilerActivity
def size(*models): return sum(p.numel() for m in models for p in m.parameters() if p.requires_grad)
for i in range(3): train(i)  # reducers are built, buckets ordered
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
    for i in range(4): train(i)
calls = [e for e in recorded.events() if e.name.startswith("gloo:")]
reduces = [e.input_shapes for e in calls if e.name == "gloo:all_reduce"]
elements = sum(torch.Size(shape).numel() for shapes in reduces for shape in shapes)
others = sorted({e.name for e in calls} - {"gloo:all_reduce"})
count = len(reduces)
"""

# Each defines train(i), and what 4 steps reduce: elements in calls.
_CELLS = {
    "plain": """
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), 0.01)
def train(i): opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step()
# %%
wanted = 4 * size(net), 4
""",
    "own class": """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
def train(i): opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step()
# %%
wanted = 4 * size(net), 4
""",
    "two optimizers": """
net = Net()
a, b = torch.optim.Adam(net.body.parameters(), 0.01), torch.optim.SGD(net.head.parameters(), 0.1)
def train(i):
    a.zero_grad(); b.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); a.step(); b.step()
# %%
wanted = 4 * size(net), 4
""",
    "gan": """
G, D = nn.Linear(2, 4), nn.Linear(4, 1); z = torch.randn(16, 2)
og, od = torch.optim.Adam(G.parameters(), 0.01), torch.optim.Adam(D.parameters(), 0.01)
def train(i):
    fake = G(part(z)); od.zero_grad(); (D(fake.detach()) - D(part(x))).mean().backward(); od.step()
    og.zero_grad(); D(fake).mean().neg().backward(); og.step()
# %%
wanted = 4 * (size(D) + size(G, D)), 4 * 3
""",
    "accumulation": """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
def train(i):
    (F.mse_loss(net(part(x)), part(y)) / 2).backward()
    if i % 2: nn.utils.clip_grad_norm_(net.parameters(), 1.0); opt.step(); opt.zero_grad()
# %%
wanted = 4 * size(net), 4
""",
    "two forwards, one backward": """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
def train(i):
    opt.zero_grad(); (F.mse_loss(net(part(x)), part(y)) + net(part(-x)).mean()).backward()
    opt.step()
# %%
wanted = 4 * size(net), 4
""",
    "one forward, two backwards": """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
def train(i):
    opt.zero_grad(); out = net(part(x)); F.mse_loss(out, part(y)).backward(retain_graph=True)
    out.mean().backward(); opt.step()
# %%
wanted = 2 * 4 * size(net), 2 * 4
""",
    "reentrant checkpointing": """
from torch.utils.checkpoint import checkpoint
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
def train(i):
    h = checkpoint(net.encode, part(x).clone().requires_grad_(), use_reentrant=True)
    opt.zero_grad(); F.mse_loss(net.head(h), part(y)).backward(); opt.step()
# %%
wanted = 4 * size(net), 4
""",
    "unused every other step": """
net = Net(); net.spare = nn.Linear(8, 1); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
def train(i):
    head = net.spare if i % 2 else net.head
    opt.zero_grad(); F.mse_loss(head(net.encode(part(x))), part(y)).backward(); opt.step()
# %%
wanted = 4 * size(net), 4
""",
    "frozen part": """
net = Net(); net.body.requires_grad_(False); opt = torch.optim.SGD(net.parameters(), 0.1)
def train(i): opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step()
# %%
wanted = 4 * size(net.head), 4
""",
    "tied weights": """
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
net[1].weight = net[0].weight
opt = torch.optim.SGD(net.parameters(), 0.1)
def train(i): opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step()
# %%
wanted = 4 * (16 + 4 + 4 + 5), 4
""",
    "checkpointing": """
from torch.utils.checkpoint import checkpoint
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
def train(i):
    h = checkpoint(net.encode, part(x), use_reentrant=False)
    opt.zero_grad(); F.mse_loss(net.head(h), part(y)).backward(); opt.step()
# %%
wanted = 4 * size(net), 4
""",
    "compiled": """
net = torch.compile(Net(), backend="eager"); opt = torch.optim.SGD(net.parameters(), 0.1)
def train(i): opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step()
# %%
wanted = 4 * size(net), 4
""",
    "lbfgs": """
net = Net()
opt = torch.optim.LBFGS(net.parameters(), 0.1, max_iter=3, line_search_fn="strong_wolfe")
closures = 0
def closure():
    global closures
    closures += 1; opt.zero_grad(); loss = F.mse_loss(net(part(x)), part(y)); loss.backward()
    return loss
def train(i):
    global closures
    if i == 0: closures = 0
    opt.step(closure)
# %%
wanted = closures * (size(net) + 1), closures * 2  # and the loss, for the line search
""",
    "looked at and evaluated": """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
def train(i):
    with torch.no_grad(): net(x)
    net(x); opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step()
# %%
wanted = 4 * size(net), 4
""",
    "a model in a module that averages it again": """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
other = torch.optim.SGD(net.head.parameters(), 0.1)
pair = nn.ModuleDict({"net": net, "criterion": nn.MSELoss()})
third = torch.optim.SGD(pair.parameters(), 0.1)
def train(i):
    opt.zero_grad(); pair["criterion"](pair["net"](part(x)), part(y)).backward()
    opt.step(); other.step(); third.step()
# %%
wanted = 4 * size(net), 4
""",
}
_COLLECTED = ("elements", "count", "others", "wanted")


@pytest.fixture(scope="module")
def found() -> dict[str, list[dict[str, object]] | RankFailed]:
    programs = {}
    for name, cell in _CELLS.items():
        setup, wanted = cell.split("# %%\n")
        programs[name] = (PRELUDE + NET, setup, _PROFILE, wanted)
    return run_each(2, programs, collect=_COLLECTED)


@pytest.mark.parametrize("pattern", _CELLS)
def test_each_gradient_is_reduced_once_a_backward(
    pattern: str, found: dict[str, list[dict[str, object]] | RankFailed]
) -> None:
    ranks = found[pattern]
    if isinstance(ranks, RankFailed):
        raise ranks
    for rank in ranks:
        assert (rank["elements"], rank["count"]) == rank["wanted"]
        assert rank["others"] == []
