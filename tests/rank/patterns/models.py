"""How models come about and what they are made of."""

from __future__ import annotations

from tests.rank.patterns.common import DOUBLE, NET, SGD_LOOP

WIDE = """
class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.i, self.o = nn.Linear(4, 600), nn.Linear(600, 1)
        self.a, self.b = nn.Linear(600, 600), nn.Linear(600, 600)  # of more than a bucket's MB
    def forward(self, x, which="ab"):
        h = torch.tanh(self.i(x))
        for name in which: h = torch.tanh(getattr(self, name)(h))
        return self.o(h)
net = Wide(); opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
"""

MODELS = {
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
    "at the top level, in three cells": NET
    + "net = Net()\n# %%\nopt = torch.optim.Adam(net.parameters(), 0.01)\n# %%"
    + SGD_LOOP
    + "# %%"
    + SGD_LOOP,
    "made by a factory, trained by a function": NET
    + """
def make(kind, **options):
    model = kind()
    return model, torch.optim.Adam(model.parameters(), **options)
def fit(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad(); F.mse_loss(model(part(x)), part(y)).backward(); optimizer.step()
        yield model
for model in fit(*make(Net, lr=0.01), steps=4): record(model)
# %%
for model in fit(*make(Net, lr=0.05), steps=4): record(model)
""",
    "module list": """
class Stack(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))
        self.out = nn.Linear(4, 1)
    def forward(self, x):
        for layer in self.layers: x = x + layer(x).relu()
        return self.out(x)
net = Stack(); opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP
    + "net.layers.append(nn.Linear(4, 4)); opt = torch.optim.Adam(net.parameters(), 0.01)"
    + SGD_LOOP,
    "module dict": """
inner = nn.ModuleDict({"relu": nn.ReLU()})
net = nn.ModuleDict({"a": nn.Linear(4, 8), "act": inner, "b": nn.Linear(8, 1)})
opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    out = net["b"](net["act"]["relu"](net["a"](part(x))))
    opt.zero_grad(); F.mse_loss(out, part(y)).backward(); opt.step(); record(net)
see(keys=list(net.state_dict()))
""",
    "parameter list and dict": """
class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.ParameterList([nn.Parameter(torch.randn(4, 4)) for _ in range(2)])
        biases = {"in": nn.Parameter(torch.zeros(4)), "out": nn.Parameter(torch.ones(()))}
        self.b = nn.ParameterDict(biases)
    def forward(self, x):
        for w in self.w: x = torch.tanh(x @ w + self.b["in"])
        return x.sum(1, keepdim=True) * self.b["out"]
net = Bare(); opt = torch.optim.SGD(net.parameters(), 0.1)
"""
    + SGD_LOOP,
    "a submodule in two places": """
class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.mid = nn.Linear(4, 4); self.body = nn.Sequential(self.mid, nn.ReLU(), self.mid)
        self.out = nn.Linear(4, 1)
    def forward(self, x):
        return self.out(self.body(x) + self.mid(x))
net = Shared(); opt = torch.optim.SGD(net.parameters(), 0.1)
"""
    + SGD_LOOP,
    "embedding and output tied": """
class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.body = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.wte.weight
    def forward(self, ix):
        return self.head(torch.tanh(self.body(self.wte(ix))))
net = LM(); opt = torch.optim.AdamW(net.parameters(), 0.01); ids = torch.randint(0, 7, (16, 5))
for _ in range(4):
    logits = net(part(ids)[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, 7), part(ids)[:, 1:].reshape(-1))
    opt.zero_grad(); loss.backward(); opt.step(); record(net)
see(keys=list(net.state_dict()), tied=net.head.weight is net.wte.weight)
""",
    "fine-tuning a pretrained net": """
class Pretrained(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv1d(1, 3, 2), nn.Linear(9, 10)
    def forward(self, x):
        return self.fc(self.conv(x[:, None]).relu().flatten(1))
resnet = Pretrained()
for p in resnet.parameters(): p.requires_grad = False
resnet.fc = nn.Linear(resnet.fc.in_features, 1); net = resnet
opt = torch.optim.SGD(net.fc.parameters(), lr=0.1, momentum=0.9)
"""
    + SGD_LOOP
    + """
for p in net.parameters(): p.requires_grad = True
groups = [{"params": net.conv.parameters(), "lr": 0.01}, {"params": net.fc.parameters()}]
opt = torch.optim.SGD(groups, 0.1)
"""
    + SGD_LOOP,
    "frozen by filter": NET
    + """
net = Net()
for name, p in net.named_parameters(): p.requires_grad = "head" in name
opt = torch.optim.AdamW(filter(lambda p: p.requires_grad, net.parameters()), 0.01)
"""
    + SGD_LOOP,
    "only biases": NET
    + """
net = Net()
for name, p in net.named_parameters(): p.requires_grad_(name.endswith("bias"))
opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
"""
    + SGD_LOOP,
    "low-rank adapters": NET
    + """
class LoRA(nn.Module):
    def __init__(self, base, r=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(r, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, r))
    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T
net = Net()
for name in ("body", "head"): setattr(net, name, LoRA(getattr(net, name)))
opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 0.05)
"""
    + SGD_LOOP,
    "an untrained teacher": NET
    + """
teacher, net = Net().eval(), Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    with torch.no_grad(): wanted = teacher(part(x))
    opt.zero_grad(); F.mse_loss(net(part(x)), wanted).backward(); opt.step(); record(net, teacher)
""",
    "a loss through a model that nobody steps": NET
    + """
critic, net = Net(), Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    opt.zero_grad(); critic(net.encode(part(x))[:, :4]).mean().backward(); opt.step()
    record(net, critic)
""",
    "buffers of all kinds": """
class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 1)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("phase", torch.ones(2, dtype=torch.cfloat))
        self.register_buffer("mask", torch.tensor([True, False, True, True]))
        self.register_buffer("position_ids", torch.arange(3).expand((1, -1)))
        self.register_buffer("wide", torch.arange(3).expand((2, -1)))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.register_buffer("absent", None)
    def forward(self, x):
        self.count += 1; self.phase *= 1j; self.scratch = self.scratch + x.mean() * 0 + 1
        return self.body(x * self.mask) * self.phase.real.abs().sum()
net = Buffered(); opt = torch.optim.SGD(net.parameters(), 0.1)
"""
    + SGD_LOOP
    + """
net.register_buffer("later", torch.full((2,), 3, dtype=torch.int32))
net.body.register_buffer("ema", torch.zeros(4, dtype=torch.double))
"""
    + SGD_LOOP
    + """
record(*[b.to(torch.cfloat) for b in net.buffers()])
see(count=int(net.count), scratch=net.scratch.tolist(), names=[n for n, _ in net.named_buffers()])
""",
    "a buffer that training reads": """
class Normed(nn.Module):
    def __init__(self):
        super().__init__(); self.body = nn.Linear(4, 1)
        self.register_buffer("step", torch.zeros(()))
    def forward(self, x):
        self.step += 1
        return self.body(x) * self.step.sqrt()
net = Normed(); opt = torch.optim.SGD(net.parameters(), 0.01)
for _ in range(4):
    a, b = net(part(x)), net(part(-x))
    opt.zero_grad(); (F.mse_loss(a, part(y)) + b.pow(2).mean()).backward(); opt.step(); record(net)
see(step=float(net.step))
""",
    "batch norm": """
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP
    + "record(*net.buffers()); see(count=int(net[1].num_batches_tracked))\n"
    + "net.eval()\nwith torch.no_grad(): record(net(x))",
    "batch norm, two forwards": """
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    a, b = net(part(x)), net(part(-x))
    opt.zero_grad(); (F.mse_loss(a, part(y)) + b.pow(2).mean()).backward(); opt.step()
    record(net, *net.buffers())
see(count=int(net[1].num_batches_tracked))
""",
    "batch norm, frozen statistics": """
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)); net(x)
opt = torch.optim.SGD(net.parameters(), 0.1); net[1].eval()
"""
    + SGD_LOOP
    + "record(*net.buffers())",
    "norms that know no batch": DOUBLE
    + """
net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(),
                    nn.Linear(8, 8), nn.GroupNorm(4, 8),
                    nn.Linear(8, 6), nn.RMSNorm(6), nn.Linear(6, 1))
opt = torch.optim.AdamW(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "dropout": """
net = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "dropout, then a model drawn at random": NET
    + """
net = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP
    + "net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)"
    + SGD_LOOP,
    "convolutions": """
class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.classifier = nn.Linear(16, 3)
    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))
net = CNN(); opt = torch.optim.Adam(net.parameters(), 0.01)
images, labels = torch.randn(16, 1, 4, 4), torch.randint(0, 3, (16,))
for _ in range(4):
    opt.zero_grad(); F.cross_entropy(net(part(images)), part(labels)).backward(); opt.step()
    record(net)
""",
    "embedding": """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 4, padding_idx=0); self.out = nn.Linear(4, 1)
    def forward(self, ix):
        return self.out(self.words(ix).mean(1))
net = Tagger(); opt = torch.optim.Adam(net.parameters(), 0.01); ids = torch.randint(0, 20, (16, 3))
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(ids)), part(y)).backward(); opt.step(); record(net)
""",
    "embedding bags": """
class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.EmbeddingBag(20, 4, mode="sum")
        self.bag = nn.EmbeddingBag(20, 4, sparse=True)
        self.out = nn.Linear(4, 1)
    def forward(self, ix):
        return self.out(self.dense(ix) + self.bag(ix))
net = Bags(); ids = torch.randint(0, 20, (16, 3))
opt = torch.optim.SGD([*net.dense.parameters(), *net.out.parameters()], 0.1)
sparse = torch.optim.SparseAdam(net.bag.parameters(), 0.05)
for _ in range(4):
    opt.zero_grad(); sparse.zero_grad(); F.mse_loss(net(part(ids)), part(y)).backward()
    opt.step(); sparse.step(); record(net)
""",
    "recurrent": """
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 4, num_layers=2, batch_first=True)
        self.gru = nn.GRU(4, 3, batch_first=True)
        self.cell, self.out = nn.GRUCell(3, 3), nn.Linear(3, 1)
    def forward(self, x):
        h = self.gru(self.lstm(x[..., None])[0])[0]; state = torch.zeros(len(x), 3)
        for t in range(h.shape[1]): state = self.cell(h[:, t], state)
        return self.out(state)
net = Recurrent(); opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "recurrent, truncated in time": """
lstm, out = nn.LSTM(4, 4), nn.Linear(4, 1)
opt = torch.optim.Adam([*lstm.parameters(), *out.parameters()], 0.01)
sequence = torch.randn(12, 16, 4); state = None
for t in range(0, 12, 3):
    h, state = lstm(part(sequence.transpose(0, 1)).transpose(0, 1)[t : t + 3], state)
    state = tuple(s.detach() for s in state)
    opt.zero_grad(); out(h).pow(2).mean().backward(); opt.step(); record(lstm, out)
""",
    "packed sequences": """
lstm, out = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 1)
opt = torch.optim.Adam([*lstm.parameters(), *out.parameters()], 0.01)
lengths = torch.arange(16) % 4 + 1
for _ in range(4):
    packed = nn.utils.rnn.pack_padded_sequence(
        part(x)[..., None], part(lengths), batch_first=True, enforce_sorted=False)
    loss = F.mse_loss(out(lstm(packed)[1][0][0]), part(y))
    opt.zero_grad(); loss.backward(); opt.step(); record(lstm, out)
""",
    "transformer": DOUBLE
    + """
class Former(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(1, 8); self.cls = nn.Parameter(torch.zeros(1, 1, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2); self.out = nn.Linear(8, 1)
    def forward(self, x):
        h = torch.cat([self.cls.expand(len(x), -1, -1), self.up(x[..., None])], 1)
        return self.out(self.encoder(h)[:, 0])
net = Former(); opt = torch.optim.AdamW(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "encoder and decoder": DOUBLE
    + """
model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
inp, out = nn.Linear(4, 8), nn.Linear(8, 1)
net = nn.ModuleList([model, inp, out]); opt = torch.optim.AdamW(net.parameters(), 0.01)
for _ in range(3):
    h = inp(part(x))[:, None]; mask = nn.Transformer.generate_square_subsequent_mask(3)
    loss = F.mse_loss(out(model(h, h.expand(-1, 3, -1), tgt_mask=mask)[:, -1]), part(y))
    opt.zero_grad(); loss.backward(); opt.step(); record(net)
""",
    "attention of the user's own, with a causal mask": DOUBLE
    + """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 1)
        mask = torch.tril(torch.ones(3, 3)).view(1, 1, 3, 3)
        self.register_buffer("bias", mask, persistent=False)
    def forward(self, x):
        h = self.qkv(x[:, None].expand(-1, 3, -1)).view(len(x), 3, 3, 2, 2)
        q, k, v = h.permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-2, -1)).masked_fill(self.bias == 0, float("-inf")).softmax(-1)
        return self.out((a @ v).transpose(1, 2).reshape(len(x), 3, 4))[:, -1]
net = Attention(); opt = torch.optim.AdamW(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "a mixture of experts": """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3); self.experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))
    def forward(self, x):
        which = self.gate(x).argmax(1); weight = self.gate(x).softmax(1)
        out = x.new_zeros(len(x), 1)
        for i, expert in enumerate(self.experts):
            rows = (which == i).nonzero()[:, 0]
            if len(rows): out = out.index_add(0, rows, expert(x[rows]) * weight[rows, i, None])
        return out
net = Experts(); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
"""
    + SGD_LOOP,
    "all bfloat16": NET
    + "net = Net().bfloat16(); x, y = x.bfloat16(), y.bfloat16()\n"
    + "opt = torch.optim.SGD(net.parameters(), 0.1)"
    + SGD_LOOP,
    "all half": NET
    + "net = Net().half(); x, y = x.half(), y.half(); opt = torch.optim.SGD(net.parameters(), 0.1)"
    + SGD_LOOP,
    "all double, by default": DOUBLE
    + NET
    + "net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)"
    + SGD_LOOP,
    "half with master weights": NET
    + """
net = Net().bfloat16(); master = [p.detach().float().requires_grad_() for p in net.parameters()]
opt = torch.optim.Adam(master, 0.01); x, y = x.bfloat16(), y.bfloat16()
for _ in range(4):
    net.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward()
    for m, p in zip(master, net.parameters()): m.grad = p.grad.float()
    opt.step()
    with torch.no_grad():
        for m, p in zip(master, net.parameters()): p.copy_(m)
    record(net, *master)
""",
    "lazy, with an optimizer made after": """
class Lazy(nn.Module):
    def __init__(self):
        super().__init__(); self.conv, self.out = nn.LazyConv1d(3, 2), nn.LazyLinear(1)
    def forward(self, x):
        return self.out(self.conv(x[:, None]).relu().flatten(1))
net = Lazy(); net(x[:2]); opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "load_state_dict with assign, optimizer kept": NET
    + "net, other = Net(), Net(); opt = torch.optim.SGD(net.parameters(), 0.1)"
    + SGD_LOOP
    + "net.load_state_dict(other.state_dict(), assign=True)"
    + SGD_LOOP,
    "built on meta": NET
    + """
with torch.device("meta"): net = Net()
net.to_empty(device="cpu")
with torch.no_grad():
    for p in net.parameters(): p.copy_(torch.randn(p.shape))
opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "saved and loaded in the middle": NET
    + "net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)"
    + SGD_LOOP
    + """
file = io.BytesIO(); torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, file)
file.seek(0)
saved = torch.load(file); net = Net(); net.load_state_dict(saved["net"])
opt = torch.optim.Adam(net.parameters(), 0.01); opt.load_state_dict(saved["opt"])
"""
    + SGD_LOOP,
    "the best state is restored": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.5); best, kept = float("inf"), None
for _ in range(6):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
    with torch.no_grad(): score = F.mse_loss(net(x), y).item()
    if score < best: best, kept = score, copy.deepcopy(net.state_dict())
net.load_state_dict(kept); record(net); see(best=best)
"""
    + SGD_LOOP,
    "spectral norm": """
first = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8))
net = nn.Sequential(first, nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP
    + "record(*net.buffers())",
    "weights drawn by apply": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
def init(m):
    if isinstance(m, nn.Linear): nn.init.xavier_uniform_(m.weight); nn.init.zeros_(m.bias)
net.apply(init)
"""
    + SGD_LOOP
    + "net.apply(init)"
    + SGD_LOOP,
    "a model that differs in class, not in names": NET
    + """
class Other(Net):
    def encode(self, x): return self.body(x).sigmoid()
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
"""
    + SGD_LOOP
    + "net.__class__ = Other"
    + SGD_LOOP,
    "a subclass of Linear, and a traced one": NET
    + """
class Scaled(nn.Linear):
    def forward(self, x): return super().forward(x) * 2
traced = torch.jit.trace(nn.Linear(8, 8), torch.ones(1, 8))
net = nn.Sequential(Scaled(4, 8), nn.Tanh(), traced, nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), 0.1)
"""
    + SGD_LOOP,
    "data parallel of old": NET
    + "net = nn.DataParallel(Net()); opt = torch.optim.SGD(net.parameters(), 0.1)"
    + SGD_LOOP,
    "wide, several buckets, in an order that changes": WIDE
    + """
for i in range(5):
    which = ("ab", "ba", "a", "b", "aba")[i]
    opt.zero_grad(); F.mse_loss(net(part(x), which), part(y)).backward(); opt.step()
    record(net)
""",
    "wide, several buckets, frozen by turns": WIDE
    + """
for i in range(4):
    net.a.requires_grad_(i % 3 != 1); net.b.requires_grad_(i % 2 == 0)
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
""",
    "stochastic depth": """
class Deep(nn.Module):
    def __init__(self):
        super().__init__(); self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.out = nn.Linear(4, 1)
    def forward(self, x):
        for layer in self.layers:
            if torch.rand(()) < 0.5: x = x + layer(x).relu()
        return self.out(x)
net = Deep(); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
"""
    + SGD_LOOP
    + "see(drawn=torch.rand(1).item())",
    "codebook moved by its own batch": """
class Codes(nn.Module):
    def __init__(self):
        super().__init__(); self.enc, self.dec = nn.Linear(4, 2), nn.Linear(2, 4)
        self.register_buffer("codes", torch.randn(5, 2))
    def forward(self, x):
        z = self.enc(x); nearest = torch.cdist(z, self.codes).argmin(1)
        with torch.no_grad():
            for i in nearest.unique(): self.codes[i].lerp_(z[nearest == i].mean(0), 0.1)
        return self.dec(z + (self.codes[nearest] - z).detach())
net = Codes(); opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(x)).backward(); opt.step()
    record(net, net.codes)
""",
    "weights given by .data": NET
    + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)"
    + SGD_LOOP
    + "for p in net.parameters(): p.data = p.data.clone() * 0.5"
    + SGD_LOOP
    + "flat = nn.utils.parameters_to_vector(net.parameters()) * 2\n"
    + "nn.utils.vector_to_parameters(flat, net.parameters())"
    + SGD_LOOP,
    "clients averaged": NET
    + """
net = Net()
for round in range(2):
    states = []
    for client in range(3):
        local = copy.deepcopy(net); opt = torch.optim.SGD(local.parameters(), 0.1)
        for _ in range(2):
            opt.zero_grad(); F.mse_loss(local(part(x) + client), part(y)).backward(); opt.step()
        states.append(local.state_dict())
    net.load_state_dict({k: sum(s[k] for s in states) / 3 for k in states[0]}); record(net)
""",
    "reptile": NET
    + """
net = Net()
for task in range(4):
    learner = copy.deepcopy(net); opt = torch.optim.SGD(learner.parameters(), 0.1)
    for _ in range(3):
        opt.zero_grad(); F.mse_loss(learner(part(x)), part(y) * task).backward(); opt.step()
    with torch.no_grad():
        for p, q in zip(net.parameters(), learner.parameters()): p.lerp_(q, 0.2)
    record(net, learner)
""",
    "maml of first order": NET
    + """
net = Net(); outer = torch.optim.Adam(net.parameters(), 0.01)
for task in range(4):
    learner = copy.deepcopy(net); inner = torch.optim.SGD(learner.parameters(), 0.1)
    inner.zero_grad(); F.mse_loss(learner(part(x)), part(y) * task).backward(); inner.step()
    inner.zero_grad(); F.mse_loss(learner(part(-x)), part(y) * task).backward(); outer.zero_grad()
    for p, q in zip(net.parameters(), learner.parameters()): p.grad = q.grad.clone()
    outer.step(); record(net)
""",
    "parametrized after training": NET
    + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)"
    + SGD_LOOP
    + """
class Centred(nn.Module):
    def forward(self, w): return w - w.mean()
nn.utils.parametrize.register_parametrization(net.body, "weight", Centred())
opt = torch.optim.SGD(net.parameters(), 0.1)
"""
    + SGD_LOOP,
    "spectral norm after training": NET
    + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)"
    + SGD_LOOP
    + """
torch.manual_seed(0); nn.utils.parametrizations.spectral_norm(net.body)
opt = torch.optim.SGD(net.parameters(), 0.1)
"""
    + SGD_LOOP,
    "another accumulator, the same data": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(6):
    if i in (2, 4):
        with torch.no_grad():
            for p in list(net.parameters())[: 1 if i == 2 else 4]: p.set_(p)
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
""",
    "channels last after training, and back": """
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 1))
images = torch.randn(16, 3, 6, 6); opt = torch.optim.SGD(net.parameters(), 0.1)
for form in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
    net = net.to(memory_format=form)
    for _ in range(3):
        opt.zero_grad(); F.mse_loss(net(part(images)), part(y)).backward(); opt.step(); record(net)
""",
    "two models whose layers have one name": """
one = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh()); two = nn.Linear(8, 1)
opt = torch.optim.SGD([*one.parameters(), *two.parameters()], 0.1)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(two(one(part(x))), part(y)).backward(); opt.step(); record(one, two)
""",
}
