"""Single-device training cells, as people write them; ``part`` and ``record`` are the harness's."""

from __future__ import annotations

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
groups = [{"params": net.body.parameters()}, {"params": net.head.parameters(), "lr": 0.01}]
opt = torch.optim.SGD(groups, 0.1)
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
    od.zero_grad(); (D(fake.detach()).pow(2).mean() + (D(part(x)) - 1).pow(2).mean()).backward()
    od.step()
    og.zero_grad(); (D(fake) - 1).pow(2).mean().backward(); og.step(); record(G, D)
""",
    "gan in one class": """
class GAN(nn.Module):
    def __init__(self):
        super().__init__(); self.g, self.d = nn.Linear(2, 4), nn.Linear(4, 1)
    def forward(self, x, mode):
        return self.g(x) if mode == "g" else self.d(x)
gan = GAN(); og = torch.optim.Adam(gan.g.parameters(), 0.01)
od = torch.optim.Adam(gan.d.parameters(), 0.01)
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
gan = GAN(); og = torch.optim.Adam(gan.g.parameters(), 0.01)
od = torch.optim.Adam(gan.d.parameters(), 0.01)
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
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
ema = copy.deepcopy(net).requires_grad_(False)
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
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.b.weight = self.a.weight
    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
net = Tied(); opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "a part shared by two models": """
trunk = nn.Linear(4, 8)
one, two = nn.Sequential(trunk, nn.Linear(8, 1)), nn.Sequential(trunk, nn.Linear(8, 1))
opt = torch.optim.Adam([*one.parameters(), *two[1].parameters()], 0.01)
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
    + """
net = Net().requires_grad_(False); net.head = nn.Linear(8, 1)
opt = torch.optim.Adam(net.head.parameters(), 0.01)
"""
    + SGD_LOOP,
    "head swapped after the optimizer": NET
    + "net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)"
    + SGD_LOOP
    + "net.head = nn.Linear(8, 1); opt = torch.optim.Adam(net.parameters(), 0.01)"
    + SGD_LOOP,
    "head swapped in the loop": NET
    + """
net = Net(); spare = nn.Linear(8, 1)
opt = torch.optim.Adam([*net.parameters(), *spare.parameters()], 0.01)
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
    + """
net = Net(); net.spare = nn.Linear(3, 3)
opt = torch.optim.AdamW(net.parameters(), 0.01, weight_decay=0.5)
"""
    + SGD_LOOP,
    "unused every other step, with momentum": """
class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)
    def forward(self, x, which):
        return getattr(self, which)(torch.tanh(self.body(x)))
net = Heads(); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
for i in range(6):
    opt.zero_grad(); F.mse_loss(net(part(x), "ab"[i % 2]), part(y)).backward(); opt.step()
    record(net)
""",
    "a whole model unused every other step": NET
    + """
a, b = Net(), Net(); opt = torch.optim.SGD([*a.parameters(), *b.parameters()], 0.1, momentum=0.9)
for i in range(6):
    opt.zero_grad(); F.mse_loss((a, b)[i % 2](part(x)), part(y)).backward(); opt.step()
    record(a, b)
""",
    "bare parameters": """
w, b = nn.Parameter(torch.randn(4, 1)), nn.Parameter(torch.zeros(1))
opt = torch.optim.Adam([w, b], 0.01)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(part(x) @ w + b, part(y)).backward(); opt.step(); record(w, b)
""",
    "bare parameters beside a model": NET
    + """
net = Net(); scale = nn.Parameter(torch.ones(1))
opt = torch.optim.Adam([*net.parameters(), scale], 0.01)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(x)) * scale, part(y)).backward(); opt.step()
    record(net, scale)
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
    opt.zero_grad(); F.mse_loss(net.head(net.body(part(x)).relu()), part(y)).backward()
    opt.step(); record(net)
""",
    "two forwards, one backward": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    opt.zero_grad(); a, b = net(part(x)), net(part(-x))
    (F.mse_loss(a, part(y)) + b.mean()).backward()
    opt.step(); record(net)
""",
    "one forward, two backwards": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    opt.zero_grad(); out = net(part(x))
    F.mse_loss(out, part(y)).backward(retain_graph=True); out.mean().backward(); opt.step()
    record(net)
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
    opt.zero_grad(); (F.mse_loss(out, part(y)) + g.pow(2).mean()).backward(); opt.step()
    record(net)
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
        super().__init__()
        self.i, self.s, self.o = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, x):
        h = self.i(x); h = checkpoint(self.s, h, use_reentrant=True)
        return self.o(checkpoint(self.s, h, use_reentrant=True))
net = Twice(); opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "checkpointing, reentrant, begun later": NET
    + """
from torch.utils.checkpoint import checkpoint
net = Net(); net.mid = nn.Linear(4, 4); opt = torch.optim.Adam(net.parameters(), 0.01)
def run(layer, h, often):
    return checkpoint(layer, h, use_reentrant=True) if often else layer(h)
for i in range(8):
    h = part(x).clone().requires_grad_()
    for _ in range(2):
        h = run(net.mid, h, i % 4 > 1)
    opt.zero_grad(); F.mse_loss(net(h), part(y)).backward(); opt.step(); record(net)
""",
    "two losses in one call": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    out = net(part(x)); opt.zero_grad()
    torch.autograd.backward([F.mse_loss(out, part(y)), out.mean()]); opt.step(); record(net)
""",
    "learning to learn": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01); call = torch.func.functional_call
for _ in range(4):
    slow = dict(net.named_parameters()); inner = F.mse_loss(call(net, slow, (x,)), y)
    gradients = torch.autograd.grad(inner, list(slow.values()), create_graph=True)
    fast = {name: p - 0.1 * g for (name, p), g in zip(slow.items(), gradients)}
    opt.zero_grad(); F.mse_loss(call(net, fast, (part(x),)), part(y)).backward()
    opt.step(); record(net)
""",
    "pruning": NET
    + "from torch.nn.utils import prune\nnet = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)"
    + SGD_LOOP
    + "prune.l1_unstructured(net.body, 'weight', 0.5)"
    + SGD_LOOP
    + "prune.remove(net.body, 'weight'); opt = torch.optim.SGD(net.parameters(), 0.1)"
    + SGD_LOOP,
    "a parameter beside a model, in a loss module": NET
    + """
class Criterion(nn.Module):
    def __init__(self, net):
        super().__init__(); self.net, self.t = net, nn.Parameter(torch.ones(1))
    def forward(self, x, y):
        return F.mse_loss(self.net(x) * self.t, y)
criterion = Criterion(Net()); opt = torch.optim.SGD(criterion.parameters(), 0.1)
for _ in range(4):
    opt.zero_grad(); criterion(part(x), part(y)).backward(); opt.step(); record(criterion)
""",
    "model and optimizer copied together": NET
    + "net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)"
    + SGD_LOOP
    + "net, opt = copy.deepcopy((net, opt))"
    + SGD_LOOP,
    "parameters appended to a group by hand": NET
    + """
net, extra = Net(), nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), 0.1)
opt.param_groups[0]["params"] += list(extra.parameters())
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(x)) + extra(part(x)), part(y)).backward()
    opt.step(); record(net, extra)
""",
    "an ensemble by vmap": NET
    + """
nets = [Net() for _ in range(3)]; params, buffers = torch.func.stack_module_state(nets)
base = copy.deepcopy(nets[0]).to("meta"); opt = torch.optim.SGD(params.values(), 0.1)
def predict(p, b, x):
    return torch.func.functional_call(base, (p, b), (x,))
for _ in range(3):
    out = torch.vmap(predict, (0, 0, None))(params, buffers, part(x))
    opt.zero_grad(); F.mse_loss(out, part(y).expand_as(out)).backward(); opt.step()
    record(*params.values())
""",
    "hooks of the user's own": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1); seen = []
net.register_forward_hook(lambda *a: seen.append("f"))
net.head.register_full_backward_hook(lambda *a: seen.append("b"))
net.head.weight.register_hook(lambda g: g * 2)
"""
    + SGD_LOOP
    + "assert seen == ['f', 'b'] * 4, seen",
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
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
fast = torch.compile(net, backend="aot_eager")
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
    opt.zero_grad(); F.mse_loss(net.head(h), part(y).to(h.dtype)).backward(); opt.step()
    record(net)
""",
    "load_state_dict with assign": NET
    + "net = Net(); other = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)"
    + SGD_LOOP
    + """
net.load_state_dict(other.state_dict(), assign=True)
opt = torch.optim.SGD(net.parameters(), 0.1)
"""
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
        net.head.weight = nn.Parameter(torch.ones_like(net.head.weight))
        opt = torch.optim.SGD(net.parameters(), 0.1)
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
w = nn.ParameterList([torch.randn(4, 1, dtype=torch.cfloat)])
opt = torch.optim.SGD(w.parameters(), 0.1)
for _ in range(4):
    opt.zero_grad(); (part(x).cfloat() @ w[0]).abs().pow(2).mean().backward(); opt.step(); record(w)
""",
    "schedulers": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
plan = torch.optim.lr_scheduler.OneCycleLR(opt, 0.5, total_steps=5)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); plan.step()
    record(net)
""",
    "foreach and fused": NET
    + """
net = Net()
for variant in ("foreach", "fused"):
    opt = torch.optim.AdamW(net.parameters(), 0.01, **{variant: True})"""
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
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        loss = F.mse_loss(net(part(x)), part(y))
    scaler.scale(loss).backward(); scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    scaler.step(opt); scaler.update(); record(net)
""",
    "a model with weight norm": """
first = nn.utils.parametrizations.weight_norm(nn.Linear(4, 8))
net = nn.Sequential(first, nn.GroupNorm(2, 8), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "a container that is never called": """
class Pair(nn.Module):
    def __init__(self):
        super().__init__(); self.enc, self.dec = nn.Linear(4, 3), nn.Linear(3, 1)
pair = Pair(); opt = torch.optim.Adam(pair.parameters(), 0.01)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(pair.dec(pair.enc(part(x))), part(y)).backward(); opt.step()
    record(pair)
""",
    "channels last": """
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 1))
net = net.to(memory_format=torch.channels_last)
images = torch.randn(16, 3, 6, 6).to(memory_format=torch.channels_last)
opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(images)), part(y)).backward(); opt.step(); record(net)
""",
}
