"""Unchanged single-device cells, on real ranks: trained as in one process, and nothing touched."""

from __future__ import annotations

import pytest

from tests.rank.harness import RankFailed, run_on_ranks
from tests.rank.parity import _warm_fork_server, check_parity, facts, notices, train  # noqa: F401

NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
    def encode(self, x):
        return torch.tanh(self.body(x))
    def forward(self, x):
        return self.head(self.encode(x))
"""

SGD_LOOP = """
for _ in range(4):
    opt.zero_grad()
    F.mse_loss(net(part(x)), part(y)).backward()
    opt.step()
    record(net)
"""

PATTERNS = {
    "sequential": """
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.AdamW(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "own class": NET
    + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)"
    + SGD_LOOP,
    "in a function": NET
    + """
def main():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(4):
        loss = F.mse_loss(model(part(x)), part(y))
        optimizer.zero_grad(); loss.backward(); optimizer.step(); record(model)
main()
""",
    "in a trainer": NET
    + """
class Trainer:
    def __init__(self):
        self.model = Net()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
    def fit(self):
        for _ in range(4):
            self.optimizer.zero_grad()
            F.mse_loss(self.model(part(x)), part(y)).backward()
            self.optimizer.step(); record(self.model)
Trainer().fit()
""",
    "in a list": NET
    + """
nets = [Net(), Net()]
opts = [torch.optim.Adam(n.parameters(), 0.01) for n in nets]
for _ in range(3):
    for n, o in zip(nets, opts):
        o.zero_grad(); F.mse_loss(n(part(x)), part(y)).backward(); o.step(); record(n)
""",
    "in a dict, one optimizer": NET
    + """
nets = {"a": Net(), "b": Net()}
opt = torch.optim.Adam([p for n in nets.values() for p in n.parameters()], 0.01)
for _ in range(3):
    opt.zero_grad(); F.mse_loss(nets["a"](part(x)) + nets["b"](part(x)), part(y)).backward()
    opt.step(); record(*nets.values())
""",
    "in a dataclass": NET
    + """
from dataclasses import dataclass
@dataclass
class State:
    net: nn.Module
    opt: object = None
state = State(Net()); state.opt = torch.optim.Adam(state.net.parameters(), 0.01)
for _ in range(3):
    state.opt.zero_grad(); F.mse_loss(state.net(part(x)), part(y)).backward()
    state.opt.step(); record(state.net)
""",
    "nobody names it": """
def build():
    net = nn.Linear(4, 1)
    return net.parameters(), lambda x: net(x)
params, predict = build(); params = list(params)
opt = torch.optim.Adam(params, 0.01)
for _ in range(3):
    opt.zero_grad(); F.mse_loss(predict(part(x)), part(y)).backward(); opt.step(); record(*params)
""",
    "parameter groups": NET
    + """
net = Net()
opt = torch.optim.SGD([{"params": net.body.parameters()}, {"params": net.head.parameters(), "lr": 0.01}], 0.1)
"""
    + SGD_LOOP,
    "two optimizers": NET
    + """
net = Net()
a, b = torch.optim.Adam(net.body.parameters(), 0.01), torch.optim.SGD(net.head.parameters(), 0.1)
for _ in range(4):
    a.zero_grad(); b.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward()
    a.step(); b.step(); record(net)
""",
    "backward before the optimizer": NET
    + """
net = Net(); F.mse_loss(net(part(x)), part(y)).backward()
opt = torch.optim.SGD(net.parameters(), 0.1); opt.step(); record(net)
"""
    + SGD_LOOP,
    "an optimizer made anew": NET
    + "net = Net()\nfor lr in (0.1, 0.01):\n    opt = torch.optim.Adam(net.parameters(), lr)"
    + SGD_LOOP.replace("\n", "\n    "),
    "gan": """
G = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))
D = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
og, od = torch.optim.Adam(G.parameters(), 0.01), torch.optim.Adam(D.parameters(), 0.01)
z = torch.randn(len(x), 2)
for _ in range(4):
    fake = G(part(z))
    od.zero_grad(); (D(fake.detach()).pow(2).mean() + (D(part(x)) - 1).pow(2).mean()).backward(); od.step()
    og.zero_grad(); (D(fake) - 1).pow(2).mean().backward(); og.step(); record(G, D)
""",
    "gan in one class": """
class GAN(nn.Module):
    def __init__(self):
        super().__init__(); self.g, self.d = nn.Linear(2, 4), nn.Linear(4, 1)
    def forward(self, x, mode):
        return self.g(x) if mode == "g" else self.d(x)
gan = GAN(); og = torch.optim.Adam(gan.g.parameters(), 0.01); od = torch.optim.Adam(gan.d.parameters(), 0.01)
z = torch.randn(len(x), 2)
for _ in range(4):
    f = gan(part(z), "g")
    od.zero_grad(); gan(f.detach(), "d").mean().backward(); od.step()
    og.zero_grad(); (-gan(f, "d").mean()).backward(); og.step(); record(gan)
""",
    "gan that freezes by turns": """
class GAN(nn.Module):
    def __init__(self):
        super().__init__(); self.g, self.d = nn.Linear(2, 4), nn.Linear(4, 1)
    def forward(self, z):
        return self.d(self.g(z))
gan = GAN(); og = torch.optim.Adam(gan.g.parameters(), 0.01); od = torch.optim.Adam(gan.d.parameters(), 0.01)
z = torch.randn(len(x), 2)
for _ in range(4):
    gan.g.requires_grad_(False); gan.d.requires_grad_(True)
    od.zero_grad(); gan(part(z)).mean().backward(); od.step()
    gan.g.requires_grad_(True); gan.d.requires_grad_(False)
    og.zero_grad(); (-gan(part(z)).mean()).backward(); og.step(); record(gan)
""",
    "lbfgs": NET
    + """
net = Net(); opt = torch.optim.LBFGS(net.parameters(), 0.1, max_iter=5)
def closure():
    opt.zero_grad(); loss = F.mse_loss(net(part(x)), part(y)); loss.backward(); return loss
for _ in range(2):
    opt.step(closure); record(net)
""",
    "lbfgs with a line search": NET
    + """
net = Net(); opt = torch.optim.LBFGS(net.parameters(), 1, max_iter=5, line_search_fn="strong_wolfe")
def closure():
    opt.zero_grad(); loss = F.mse_loss(net(part(x)), part(y)); loss.backward(); return loss
losses = [opt.step(closure=closure).item() for _ in range(2)]
record(net, torch.tensor(losses[0]))
""",
    "ema by deepcopy": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1); ema = copy.deepcopy(net).requires_grad_(False)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step()
    for a, b in zip(ema.parameters(), net.parameters()): a.lerp_(b, 0.1)
    record(net, ema)
""",
    "averaged model and swa schedule": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
swa = torch.optim.swa_utils.AveragedModel(net); schedule = torch.optim.swa_utils.SWALR(opt, 0.05)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); schedule.step()
    swa.update_parameters(net); record(net, swa.module)
""",
    "a copy is trained on": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
"""
    + SGD_LOOP
    + """
net = copy.deepcopy(net); opt = torch.optim.SGD(net.parameters(), 0.1)
"""
    + SGD_LOOP,
    "tied weights": """
class Tied(nn.Module):
    def __init__(self):
        super().__init__(); self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.b.weight = self.a.weight
    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
net = Tied(); opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "a part shared by two models": """
trunk = nn.Linear(4, 8)
one, two = nn.Sequential(trunk, nn.Linear(8, 1)), nn.Sequential(trunk, nn.Linear(8, 1))
opt = torch.optim.Adam({*one.parameters(), *two.parameters()} and [*one.parameters(), *two[1].parameters()], 0.01)
for i in range(4):
    net = (one, two)[i % 2]
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(one, two)
""",
    "frozen part": NET
    + "net = Net(); net.body.requires_grad_(False); opt = torch.optim.Adam(net.parameters(), 0.01)"
    + SGD_LOOP,
    "frozen after the optimizer, then thawed": NET
    + "net = Net(); opt = torch.optim.AdamW(net.parameters(), 0.01); net.body.requires_grad_(False)"
    + SGD_LOOP
    + "net.body.requires_grad_(True)"
    + SGD_LOOP,
    "frozen and thawed in mid-loop": NET
    + """
net = Net(); opt = torch.optim.AdamW(net.parameters(), 0.01)
for i in range(6):
    net.body.requires_grad_(i % 3 != 1)
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
""",
    "layer replaced before the optimizer": NET
    + "net = Net(); net.requires_grad_(False); net.head = nn.Linear(8, 1); opt = torch.optim.Adam(net.head.parameters(), 0.01)"
    + SGD_LOOP,
    "head swapped after the optimizer": NET
    + "net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)"
    + SGD_LOOP
    + "net.head = nn.Linear(8, 1); opt = torch.optim.Adam(net.parameters(), 0.01)"
    + SGD_LOOP,
    "head swapped in the loop": NET
    + """
net = Net(); spare = nn.Linear(8, 1); opt = torch.optim.Adam([*net.parameters(), *spare.parameters()], 0.01)
for i in range(5):
    if i == 3: net.head = spare
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
""",
    "layer added in the loop": NET
    + """
class Growing(Net):
    def forward(self, x):
        out = super().forward(x)
        return out + self.extra(x) if hasattr(self, "extra") else out
net = Growing(); opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(5):
    if i == 3:
        net.extra = nn.Linear(4, 1); opt.add_param_group({"params": net.extra.parameters()})
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
""",
    "always unused, with weight decay": NET
    + "net = Net(); net.spare = nn.Linear(3, 3); opt = torch.optim.AdamW(net.parameters(), 0.01, weight_decay=0.5)"
    + SGD_LOOP,
    "unused every other step, with momentum": """
class Heads(nn.Module):
    def __init__(self):
        super().__init__(); self.body, self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)
    def forward(self, x, which):
        return getattr(self, which)(torch.tanh(self.body(x)))
net = Heads(); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
for i in range(6):
    opt.zero_grad(); F.mse_loss(net(part(x), "ab"[i % 2]), part(y)).backward(); opt.step(); record(net)
""",
    "a whole model unused every other step": NET
    + """
a, b = Net(), Net(); opt = torch.optim.SGD([*a.parameters(), *b.parameters()], 0.1, momentum=0.9)
for i in range(6):
    opt.zero_grad(); F.mse_loss((a, b)[i % 2](part(x)), part(y)).backward(); opt.step(); record(a, b)
""",
    "bare parameters": """
w, b = nn.Parameter(torch.randn(4, 1)), nn.Parameter(torch.zeros(1))
opt = torch.optim.Adam([w, b], 0.01)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(part(x) @ w + b, part(y)).backward(); opt.step(); record(w, b)
""",
    "bare parameters beside a model": NET
    + """
net = Net(); scale = nn.Parameter(torch.ones(1)); opt = torch.optim.Adam([*net.parameters(), scale], 0.01)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(x)) * scale, part(y)).backward(); opt.step(); record(net, scale)
""",
    "no optimizer, a model": NET
    + """
net = Net()
for _ in range(4):
    net.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward()
    for p in net.parameters(): p.data -= 0.1 * p.grad
    record(net)
""",
    "no optimizer, tensors": """
w = torch.randn(4, 1, requires_grad=True); b = torch.zeros(1, requires_grad=True)
def sgd(params, lr):
    with torch.no_grad():
        for p in params: p -= lr * p.grad; p.grad.zero_()
for _ in range(4):
    (F.mse_loss(part(x) @ w + b, part(y))).backward(); sgd([w, b], 0.1); record(w, b)
""",
    "no optimizer, made in a function twice": """
def fit():
    w = nn.Parameter(torch.randn(4, 1))
    for _ in range(3):
        F.mse_loss(part(x) @ w, part(y)).backward()
        w.data -= 0.1 * w.grad; w.grad = None; record(w)
fit(); fit()
""",
    "no optimizer, a model in a function twice": NET
    + """
def fit():
    net = Net()
    for _ in range(3):
        net.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward()
        with torch.no_grad():
            for p in net.parameters(): p -= 0.1 * p.grad
        record(net)
fit(); fit()
""",
    "another method": NET
    + """
Net.loss = lambda self, x, y: F.mse_loss(self.head(self.encode(x)), y)
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    opt.zero_grad(); net.loss(part(x), part(y)).backward(); opt.step(); record(net)
""",
    "submodules called": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net.head(net.body(part(x)).relu()), part(y)).backward(); opt.step(); record(net)
""",
    "two forwards, one backward": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    opt.zero_grad(); a, b = net(part(x)), net(part(-x)); (F.mse_loss(a, part(y)) + b.mean()).backward()
    opt.step(); record(net)
""",
    "one forward, two backwards": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    opt.zero_grad(); out = net(part(x))
    F.mse_loss(out, part(y)).backward(retain_graph=True); out.mean().backward(); opt.step(); record(net)
""",
    "two forwards, two backwards": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    opt.zero_grad(); a, b = net(part(x)), net(part(-x))
    F.mse_loss(a, part(y)).backward(); b.mean().backward(); opt.step(); record(net)
""",
    "accumulation": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for i in range(8):
    (F.mse_loss(net(part(x) + i), part(y)) / 4).backward()
    if i % 4 == 3: opt.step(); opt.zero_grad(); record(net)
""",
    "zero_grad to zero": NET
    + "net = Net(); net.spare = nn.Linear(2, 2); opt = torch.optim.AdamW(net.parameters(), 0.01)"
    + SGD_LOOP.replace("zero_grad()", "zero_grad(set_to_none=False)"),
    "clipping": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.5)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.1); opt.step(); record(net)
    opt.zero_grad(); F.mse_loss(net.head(net.encode(part(x))), part(y)).backward()
    nn.utils.clip_grad_value_(net.parameters(), 0.05); opt.step(); record(net)
""",
    "step without a backward": NET
    + "net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01); opt.step(); opt.step()"
    + SGD_LOOP
    + "opt.step(); record(net)",
    "gradients set by hand": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    gradients = torch.autograd.grad(F.mse_loss(net(part(x)), part(y)), list(net.parameters()))
    for p, g in zip(net.parameters(), gradients): p.grad = g
    opt.step(); record(net)
""",
    "gradient penalty": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    inputs = part(x).clone().requires_grad_(); out = net(inputs)
    g, = torch.autograd.grad(out.sum(), inputs, create_graph=True)
    opt.zero_grad(); (F.mse_loss(out, part(y)) + g.pow(2).mean()).backward(); opt.step(); record(net)
""",
    "checkpointing, not reentrant": NET
    + """
from torch.utils.checkpoint import checkpoint
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    opt.zero_grad(); h = checkpoint(net.encode, part(x), use_reentrant=False)
    F.mse_loss(net.head(h), part(y)).backward(); opt.step(); record(net)
""",
    "checkpointing, reentrant, a layer twice": """
from torch.utils.checkpoint import checkpoint
class Twice(nn.Module):
    def __init__(self):
        super().__init__(); self.i, self.s, self.o = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, x):
        h = self.i(x); h = checkpoint(self.s, h, use_reentrant=True)
        return self.o(checkpoint(self.s, h, use_reentrant=True))
net = Twice(); opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "functional_call": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    out = torch.func.functional_call(net, dict(net.named_parameters()), (part(x),))
    opt.zero_grad(); F.mse_loss(out, part(y)).backward(); opt.step(); record(net)
""",
    "forward of the user's own": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
net.forward = lambda x: net.head(net.body(x).sigmoid())
"""
    + SGD_LOOP
    + "assert 'lambda' in repr(net.forward)",
    "compiled": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01); fast = torch.compile(net, backend="aot_eager")
for _ in range(4):
    opt.zero_grad(); F.mse_loss(fast(part(x)), part(y)).backward(); opt.step(); record(net)
""",
    "compiled under one name": NET
    + """
net = torch.compile(Net(), backend="aot_eager"); opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "compiled in place": NET
    + """
net = Net(); net.compile(backend="aot_eager"); opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "lazy": """
net = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(1))
opt = torch.optim.SGD(net.parameters(), 0.1)
"""
    + SGD_LOOP,
    "lazy, dry run first": """
net = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(1)); net(x)
opt = torch.optim.SGD(net.parameters(), 0.1)
"""
    + SGD_LOOP,
    "to double after training": NET
    + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)"
    + SGD_LOOP
    + "net.double(); x, y = x.double(), y.double()"
    + SGD_LOOP,
    "half and back": NET
    + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)"
    + SGD_LOOP
    + "net.half().float()"
    + SGD_LOOP,
    "one part to double": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(5):
    if i == 3: net.head.double(); opt.zero_grad()
    h = net.encode(part(x)).to(net.head.weight.dtype)
    opt.zero_grad(); F.mse_loss(net.head(h), part(y).to(h.dtype)).backward(); opt.step(); record(net)
""",
    "load_state_dict with assign": NET
    + "net = Net(); other = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)"
    + SGD_LOOP
    + "net.load_state_dict(other.state_dict(), assign=True); opt = torch.optim.SGD(net.parameters(), 0.1)"
    + SGD_LOOP,
    "load_state_dict": NET
    + "net = Net(); other = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)"
    + SGD_LOOP
    + "net.load_state_dict(other.state_dict())"
    + SGD_LOOP,
    "parameters replaced": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(5):
    if i == 3:
        net.head.weight = nn.Parameter(torch.ones_like(net.head.weight)); opt = torch.optim.SGD(net.parameters(), 0.1)
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
""",
    "sparse embedding": """
emb = nn.Embedding(10, 4, sparse=True); opt = torch.optim.SparseAdam(emb.parameters())
ix = torch.arange(8) % 5
for _ in range(4):
    opt.zero_grad(); emb(part(ix)).pow(2).mean().backward(); opt.step(); record(emb)
""",
    "sparse embedding used by turns, in a model": """
class Words(nn.Module):
    def __init__(self):
        super().__init__(); self.e, self.o = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1)
net = Words(); opt = torch.optim.SGD(net.parameters(), 0.1); ix = torch.arange(8) % 5
for i in range(4):
    h = net.e(part(ix)) if i % 2 else part(x[:4])
    opt.zero_grad(); net.o(h).pow(2).mean().backward(); opt.step(); record(net)
""",
    "complex": """
w = nn.ParameterList([torch.randn(4, 1, dtype=torch.cfloat)]); opt = torch.optim.SGD(w.parameters(), 0.1)
for _ in range(4):
    opt.zero_grad(); (part(x).cfloat() @ w[0]).abs().pow(2).mean().backward(); opt.step(); record(w)
""",
    "schedulers": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1); plan = torch.optim.lr_scheduler.OneCycleLR(opt, 0.5, total_steps=5)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); plan.step(); record(net)
""",
    "foreach and fused": NET
    + "net = Net()\nfor opt in (torch.optim.AdamW(net.parameters(), 0.01, foreach=True), torch.optim.AdamW(net.parameters(), 0.01, fused=True)):"
    + SGD_LOOP.replace("\n", "\n    "),
    "stepping inside backward": NET
    + """
net = Net(); opts = {p: torch.optim.SGD([p], 0.1, momentum=0.9) for p in net.parameters()}
def step(p):
    opts[p].step(); opts[p].zero_grad()
for p in net.parameters(): p.register_post_accumulate_grad_hook(step)
for _ in range(4):
    F.mse_loss(net(part(x)), part(y)).backward(); record(net)
""",
    "autocast": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1); scaler = torch.amp.GradScaler("cpu")
for _ in range(4):
    opt.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=False): loss = F.mse_loss(net(part(x)), part(y))
    scaler.scale(loss).backward(); scaler.unscale_(opt); nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    scaler.step(opt); scaler.update(); record(net)
""",
    "a model with weight norm": """
net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 8)), nn.GroupNorm(2, 8), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "a container that is never called": """
class Pair(nn.Module):
    def __init__(self):
        super().__init__(); self.enc, self.dec = nn.Linear(4, 3), nn.Linear(3, 1)
pair = Pair(); opt = torch.optim.Adam(pair.parameters(), 0.01)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(pair.dec(pair.enc(part(x))), part(y)).backward(); opt.step(); record(pair)
""",
    "channels last": """
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 1)).to(memory_format=torch.channels_last)
images = torch.randn(16, 3, 6, 6).to(memory_format=torch.channels_last)
opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(images)), part(y)).backward(); opt.step(); record(net)
""",
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_trains_as_one_process(pattern: str) -> None:
    check_parity(PATTERNS[pattern])


@pytest.mark.parametrize("pattern", ["own class", "gan", "unused every other step, with momentum"])
@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_trains_as_one_process_on_any_number_of_ranks(pattern: str, world_size: int) -> None:
    rows = 12 if world_size == 3 else 16  # equal parts, as a loader gives them
    check_parity(f"x, y = x[:{rows}], y[:{rows}]", PATTERNS[pattern], world_size=world_size)


def test_a_model_made_in_one_cell_is_trained_in_another() -> None:
    cells = (NET + "net = Net()", "opt = torch.optim.Adam(net.parameters(), 0.01)", SGD_LOOP)
    found = check_parity(*cells, SGD_LOOP)
    assert facts(found) == [("model", "Net, 49 parameters")]
    assert notices(found) == []


def test_a_model_stays_what_it_is() -> None:
    found = train(
        2,
        NET
        + """
net = Net(); before = set(vars(net)); keys = list(net.state_dict())
opt = torch.optim.SGD(net.parameters(), 0.1)
"""
        + SGD_LOOP
        + """
net.note = 7
facts = {
    "type": type(net) is Net,
    "attributes": set(vars(net)) == before | {"note"},
    "keys": list(net.state_dict()) == keys,
    "forward": net.forward.__func__ is Net.forward,
    "hooks": not net._forward_hooks and not net._forward_pre_hooks and not net._backward_hooks,
    "parameters": all(type(p) is nn.Parameter and not vars(p) for p in net.parameters()),
}
""",
        collect=("facts",),
    )
    assert all(all(one["facts"].values()) for one in found), found[0]["facts"]


def test_copies_and_files_are_plain() -> None:
    found = train(
        2,
        NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)" + SGD_LOOP,
        """
ema = copy.deepcopy(net)
blob = io.BytesIO(); torch.save(net, blob); blob.seek(0)
texts = [pickle.dumps(net), blob.getvalue(), pickle.dumps(opt), pickle.dumps(net.state_dict())]
loaded = torch.load(blob, weights_only=False)
(F.mse_loss(ema(part(x)), part(y)) + F.mse_loss(loaded(part(x)), part(y))).backward()  # trained on
facts = {
    "no trace": not any(b"ddp_magic" in text or b"istributed" in text for text in texts),
    "no hooks": not any(p._post_accumulate_grad_hooks for p in copy.deepcopy(ema).parameters()),
    "same values": all(torch.equal(a, b) for a, b in zip(net.parameters(), loaded.parameters())),
    "averaged": all(same_on_all_ranks(p.grad) for n in (ema, loaded) for p in n.parameters()),
}
""",
        collect=("facts",),
    )
    assert all(all(one["facts"].values()) for one in found), found[0]["facts"]


def test_each_gradient_is_reduced_once_a_step() -> None:
    found = train(
        2,
        NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)" + SGD_LOOP,
        """
from torch.profiler import profile, ProfilerActivity
with profile(activities=[ProfilerActivity.CPU]) as seen:
    for _ in range(5):
        opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step()
calls = {e.key: e.count for e in seen.key_averages() if "gloo:" in e.key or "c10d::" in e.key}
reduces = sum(n for key, n in calls.items() if key == "gloo:all_reduce")
others = [key for key in calls if "reduce" not in key]
""",
        collect=("reduces", "others"),
    )
    assert [one["reduces"] for one in found] == [5, 5]
    assert found[0]["others"] == []


def test_a_model_that_is_made_anew_leaves_nothing_behind() -> None:
    cell = NET + "net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)" + SGD_LOOP
    found = train(
        2,
        "old = []; gc.disable()",
        *(3 * [cell + "old += [weakref.ref(net), weakref.ref(net.head.weight), weakref.ref(opt)]"]),
        "net = opt = None; left = [ref() is not None for ref in old]; left_here = len(list(attacher()._registry))",
        "net = Net(); net(x).sum().backward(); old = weakref.ref(net.head.weight); net = None; left.append(old() is not None)",
        "tensor = torch.ones(3, requires_grad=True); tensor.sum().backward(); old = weakref.ref(tensor); tensor = None; left.append(old() is not None)",
        collect=("left", "left_here"),
    )
    assert not any(found[0]["left"]), found[0]["left"]
    assert found[0]["left_here"] == 0


def test_parameters_are_made_equal_before_the_first_step() -> None:
    cell = """
torch.manual_seed(100 * rank)
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)); net[1].running_mean += rank
torch.manual_seed(0)
opt = torch.optim.SGD(net.parameters(), 0.1)
equal = [same_on_all_ranks(t) for t in net.state_dict().values()]
"""
    found = train(2, cell, SGD_LOOP, collect=("equal",))
    assert all(found[1]["equal"])
    assert notices(found) == [
        "net (Sequential): differed between ranks; all have rank 0's values now"
    ]


def test_weights_drawn_anew_after_the_optimizer_are_made_equal() -> None:
    cell = NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)"
    draw = "torch.manual_seed(rank); net.apply(lambda m: nn.init.normal_(m.weight) if hasattr(m, 'weight') else None)"
    train(2, cell, draw, SGD_LOOP)


def test_buffers_are_rank_0s_after_each_backward() -> None:
    found = train(
        2,
        """
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
net.register_buffer("positions", torch.arange(3).expand(2, -1)); net.register_buffer("nothing", None)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    a, b = net(part(x)), net(part(-x))
    opt.zero_grad(); (F.mse_loss(a, part(y)) + b.mean()).backward(); opt.step(); record(net)
equal = [same_on_all_ranks(b) for b in net.buffers()]; count = int(net[1].num_batches_tracked)
""",
        collect=("equal", "count"),
    )
    assert all(found[1]["equal"])
    assert found[1]["count"] == 6


@pytest.mark.parametrize(
    "loss",
    [
        "net(part(x)).pow(2).mean() if rank == 0 else net.encode(part(x)).pow(2).mean()",
        "net(part(x)).pow(2).mean() if (rank + i) % 2 else net.body(part(x)).pow(2).mean()",
        "net(part(x)).pow(2).mean() if rank else other(part(x)).pow(2).mean()",
        "other(part(x)).pow(2).mean() + (net.head.bias * 0).sum() if rank else other(part(x)).mean()",
    ],
)
def test_what_only_some_ranks_use_counts_as_zero_on_the_others(loss: str) -> None:
    ours = f"""
net, other = Net(), Net(); opt = torch.optim.AdamW([*net.parameters(), *other.parameters()], 0.01, weight_decay=0.5)
for i in range(4):
    opt.zero_grad(); loss = {loss}; loss.backward(); opt.step(); record(net, other)
"""
    world = "world_size, parts = 2, [t.clone() for t in x.chunk(2)]\n"
    single = f"""
net, other = Net(), Net(); opt = torch.optim.AdamW([*net.parameters(), *other.parameters()], 0.01, weight_decay=0.5)
def loss_of(rank, i):
    part = lambda t: parts[rank]
    return {loss}
for i in range(4):
    opt.zero_grad(); ((loss_of(0, i) + loss_of(1, i)) / 2).backward(); opt.step(); record(net, other)
"""
    from tests.rank.harness import run_single
    from tests.rank.parity import PRELUDE, _difference

    wanted = run_single(PRELUDE, NET, world + single, collect=("trace",))
    found = train(2, NET, ours)
    assert _difference(wanted["trace"], found[0]["trace"]) < 1e-5


def test_a_model_on_one_rank_only_stays_there() -> None:
    found = train(
        2,
        NET
        + """
if rank == 0:
    probe = nn.Linear(4, 1); probe_opt = torch.optim.SGD(probe.parameters(), 0.1)
    for _ in range(3): probe(x).mean().backward(); probe_opt.step()
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
"""
        + SGD_LOOP
        + """
if rank == 0:
    for _ in range(3): probe(x).mean().backward(); probe_opt.step()
"""
        + SGD_LOOP,
    )
    assert notices(found) == [
        "probe (Linear): is not on every rank, so its gradients are not averaged",
        "Net: differed between ranks; all have rank 0's values now",  # the probe drew numbers
    ]


def test_a_forward_on_one_rank_only_is_harmless() -> None:
    train(
        2,
        NET
        + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
if rank == 0: print(net(x).shape)
dist.barrier()
"""
        + SGD_LOOP
        + "if rank == 1: net(x); net.eval()(x)\ndist.barrier()"
        + SGD_LOOP,
    )


def test_a_model_of_another_shape_on_some_rank_is_refused_on_all() -> None:
    found = train(
        2,
        """
from ddp_magic.errors import ParityError
emb = nn.Embedding(10 + rank, 2)
try:
    torch.optim.SGD(emb.parameters(), 0.1)
    message = ""
except ParityError as error:
    message = str(error)
total = torch.ones(1); dist.all_reduce(total)
""",
        collect=("message", "total"),
    )
    for one in found:
        assert "emb (Embedding) is not the same model on all ranks" in one["message"]
        assert "rank 0 has 'weight (10, 2)" in one["message"]
        assert "rank 1 has 'weight (11, 2)" in one["message"]
        assert one["total"].item() == 2


def test_inputs_that_need_gradients_are_not_averaged() -> None:
    found = train(
        2,
        NET
        + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1); equal = []
for _ in range(3):
    adversarial = part(x).clone().requires_grad_()
    opt.zero_grad(); F.mse_loss(net(adversarial), part(y)).backward(); opt.step(); record(net)
    equal.append(same_on_all_ranks(adversarial.grad))
""",
        collect=("equal",),
    )
    assert found[0]["equal"] == [False] * 3
    assert notices(found) == [
        "`adversarial` is not the same on all ranks; its gradient is not averaged"
    ]


def test_bare_parameters_are_named() -> None:
    found = check_parity(PATTERNS["bare parameters"])
    assert notices(found) == ["`w, b` belongs to no module; its gradient is averaged over ranks"]


def test_what_goes_unused_is_named_once() -> None:
    found = check_parity(PATTERNS["always unused, with weight decay"])
    assert notices(found) == [
        "Net: spare.weight, spare.bias took no part in this loss, so got no gradient"
    ]


@pytest.mark.parametrize("model", ["DDP(raw)", "raw"])
def test_a_ddp_of_the_users_own_is_left_alone(model: str) -> None:
    cell = f"""
from torch.nn.parallel import DistributedDataParallel as DDP
raw = Net(); opt = torch.optim.SGD(raw.parameters(), 0.1); raw(part(x)).sum().backward(); opt.zero_grad()
ddp = DDP(raw); model = ddp
opt = torch.optim.SGD(({model}).parameters(), 0.1)
for i in range(6):
    opt.zero_grad()
    with model.no_sync() if i % 2 == 0 else contextlib.nullcontext():
        (model(part(x)) - part(y)).pow(2).mean().backward()
    if i % 2: opt.step(); record(raw)
held = [one for one in attacher()._registry]
plain = not any(p._post_accumulate_grad_hooks for p in raw.parameters())
"""
    found = train(2, NET, cell, collect=("held", "plain"))
    assert found[0]["held"] == []
    assert found[0]["plain"]


def test_fsdp_is_left_alone() -> None:
    found = run_on_ranks(
        2,
        "import torch, torch.nn as nn, gc",
        """
from torch.distributed.fsdp import fully_shard
net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)); fully_shard(net)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    opt.zero_grad(); net(torch.randn(2, 4)).sum().backward(); opt.step()
from ddp_magic.rank.attach import Attacher
held = len(list(next(o for o in gc.get_objects() if type(o) is Attacher)._registry))
""",
        collect=("held",),
    )
    assert found[0]["held"] == 0


def test_inactive_nothing_is_done_and_later_all_is_equal_again() -> None:
    found = train(
        2,
        NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)" + SGD_LOOP,
        """
if rank == 0:  # a cell on a subset of ranks: no collective may be issued
    attacher().active = False
    for _ in range(3):
        opt.zero_grad(); net(x).sum().backward(); opt.step()
    other = Net(); optimizer = torch.optim.SGD(other.parameters(), 0.1); other(x).sum().backward(); optimizer.step()
kept = len(attacher()._registry._attachments), sum(len(a.fired) for a in attacher()._registry)
attacher().active = True
""",
        "attacher().resync()",
        SGD_LOOP,
        collect=("kept",),
    )
    assert found[0]["kept"] == (1, 0)
    assert notices(found) == ["Net: differed between ranks; all have rank 0's values now"]


def test_after_rank_0_trained_alone_all_have_its_optimizer_state() -> None:
    """Rank 0's model and moments are the ones that one process would have had."""
    setup = NET + "net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)"
    alone = """
if rank == 0:
    for _ in range(3): opt.zero_grad(); net(x).pow(2).sum().backward(); opt.step()
"""
    check_parity(
        setup + SGD_LOOP,
        "if world_size > 1 and rank == 0: attacher().active = False\n" + alone,
        "if world_size > 1: attacher().active = True; attacher().resync()",
        SGD_LOOP,
    )


def test_not_wrapped() -> None:
    cell = NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)" + SGD_LOOP
    found = run_on_ranks(
        2,
        *_with_prelude(cell),
        "equal = same_on_all_ranks(net.head.weight)",
        collect=("equal",),
        wrap=False,
    )
    assert not found[0]["equal"]
    assert facts(found) == []


def test_uninstalled_nothing_is_left() -> None:
    found = train(
        2,
        NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)" + SGD_LOOP,
        """
attacher().uninstall()
net(part(x)).sum().backward()
import torch.optim.optimizer as module, torch.nn.modules.module as modules
left = [
    any(p._post_accumulate_grad_hooks for p in net.parameters()),
    bool(module._global_optimizer_pre_hooks),
    bool(modules._global_parameter_registration_hooks or modules._global_module_registration_hooks),
    any("ddp_magic" in f.__code__.co_filename for f in (
        torch.autograd.backward, torch.optim.Optimizer.add_param_group, nn.parallel.DistributedDataParallel.__init__)),
    list(attacher()._registry) != [],
]
""",
        collect=("left",),
    )
    assert found[0]["left"] == [False] * 5


def test_a_new_process_group_is_taken_up() -> None:
    found = train(
        2,
        NET
        + """
from torch.nn.parallel import DistributedDataParallel as DDP
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1); ddp = DDP(Net()); ddp_opt = torch.optim.SGD(ddp.parameters(), 0.1)
w = nn.Parameter(torch.ones(4, 1)); w_opt = torch.optim.SGD([w], 0.1)
def train():
    for model, optimizer in ((net, opt), (ddp, ddp_opt)):
        optimizer.zero_grad(); F.mse_loss(model(part(x)), part(y)).backward(); optimizer.step(); record(model)
    w_opt.zero_grad(); F.mse_loss(part(x) @ w, part(y)).backward(); w_opt.step(); record(w)
for _ in range(3): train()
""",
        """
store = dist.distributed_c10d._get_default_store()
dist.destroy_process_group()
dist.init_process_group("gloo", store=dist.PrefixStore("second", store), rank=rank, world_size=world_size)
attacher().on_new_group()
for _ in range(3): train()
""",
    )
    assert len(found[0]["trace"]) == 18


def test_a_backward_that_raised_leaves_the_next_one_whole() -> None:
    train(
        2,
        NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)" + SGD_LOOP,
        """
def fail(gradient): raise ValueError("on purpose")
hook = net.body.weight.register_hook(fail)
try:
    net(part(x)).sum().backward()
except ValueError as error:
    raised = str(error)
hook.remove()
"""
        + SGD_LOOP,
        collect=("raised",),
    )


def test_wrap_attaches_with_options() -> None:
    found = train(
        2,
        NET
        + """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
same = attacher().wrap(net, gradient_as_bucket_view=True, static_graph=True, comm_hook=(None, fp16_compress_hook)) is net
"""
        + SGD_LOOP.replace("zero_grad()", "zero_grad(set_to_none=False)")
        + """
reducer = next(iter(attacher()._registry))._reducer
hooked = [hook.__name__ for hook, _ in reducer._ddp._comm_hooks], reducer._ddp.gradient_as_bucket_view
""",
        collect=("same", "hooked"),
    )
    assert found[0]["same"]
    assert found[0]["hooked"] == (["fp16_compress_hook"], True)
    assert notices(found) == ["ddp.wrap: static_graph not needed: what it allows works without it"]


def test_wrapping_what_cannot_be_trained_says_so() -> None:
    with pytest.raises(
        RankFailed, match=r"ddp.wrap: ReLU has no parameter that requires a gradient"
    ):
        train(1, "attacher().wrap(nn.ReLU())")


def test_checksums_tell_what_trained_and_whether_it_drifted() -> None:
    found = train(
        2,
        NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)" + SGD_LOOP,
        "sums = [attacher().trained_checksums(), attacher().trained_checksums()]",
        SGD_LOOP + "net.head.bias.data += rank; sums.append(attacher().trained_checksums())",
        collect=("sums",),
    )
    (first, second, third), (other, _, drifted) = found[0]["sums"], found[1]["sums"]
    assert first == other
    assert list(first) == ["net (Net)"]
    assert second == {}
    assert third != drifted


def _with_prelude(*cells: str) -> tuple[str, ...]:
    from tests.rank.parity import PRELUDE

    return PRELUDE, *cells
