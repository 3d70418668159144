"""Optimizers, schedules and steps."""

from __future__ import annotations

from tests.rank.patterns.common import NET, SGD_LOOP

OPTIMIZING = {
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
    "parameters appended to a group by hand": NET
    + """
net, extra = Net(), nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), 0.1)
opt.param_groups[0]["params"] += list(extra.parameters())
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(x)) + extra(part(x)), part(y)).backward()
    opt.step(); record(net, extra)
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
    "several optimizers of one model, by turns": NET
    + """
net = Net()
a = torch.optim.SGD(net.body.parameters(), 0.1, momentum=0.9)
b = torch.optim.Adam(net.head.parameters(), 0.05)
for i in range(6):
    opt = (a, b)[i % 2]; net.zero_grad()
    F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
""",
    "two optimizers over the same parameters": NET
    + """
net = Net()
warm, main = torch.optim.SGD(net.parameters(), 0.1), torch.optim.Adam(net.parameters(), 0.01)
for i in range(6):
    opt = warm if i < 3 else main
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
""",
    "groups without weight decay": NET
    + """
net = Net(); named = list(net.named_parameters())
opt = torch.optim.AdamW([
    {"params": [p for n, p in named if n.endswith("weight")], "weight_decay": 0.5},
    {"params": [p for n, p in named if n.endswith("bias")], "weight_decay": 0.0}], lr=0.05)
"""
    + SGD_LOOP,
    "named parameters": NET
    + "net = Net(); opt = torch.optim.SGD(net.named_parameters(), 0.1)"
    + SGD_LOOP,
    "wasserstein gan with a gradient penalty": """
G = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))
D = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
og, od = torch.optim.RMSprop(G.parameters(), 0.01), torch.optim.RMSprop(D.parameters(), 0.01)
for i in range(6):
    z, mix = torch.randn(16, 2), torch.rand(16, 1); fake = G(part(z)).detach()
    between = (part(mix) * part(x) + (1 - part(mix)) * fake).requires_grad_()
    slope, = torch.autograd.grad(D(between).sum(), between, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).pow(2).mean()
    od.zero_grad(); (D(fake).mean() - D(part(x)).mean() + 10 * penalty).backward(); od.step()
    if i % 3 == 2:
        og.zero_grad(); (-D(G(part(z))).mean()).backward(); og.step()
    record(G, D)
""",
    "cycle of two generators": """
A, B, D = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
import itertools
og = torch.optim.Adam(itertools.chain(A.parameters(), B.parameters()), 0.01)
od = torch.optim.Adam(D.parameters(), 0.01)
for _ in range(4):
    D.requires_grad_(False); og.zero_grad()
    (F.l1_loss(B(A(part(x))), part(x)) + D(A(part(x))).pow(2).mean()).backward(); og.step()
    D.requires_grad_(True); od.zero_grad(); D(A(part(x)).detach()).pow(2).mean().backward()
    od.step()
    record(A, B, D)
""",
    "accumulation with a last part": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9); opt.zero_grad()
for i in range(7):
    (F.mse_loss(net(part(x) + i), part(y)) / 3).backward()
    if (i + 1) % 3 == 0 or i == 6: opt.step(); opt.zero_grad(); record(net)
""",
    "accumulation, cleared to zero": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
for i in range(8):
    (F.mse_loss(net(part(x) + i), part(y)) / 4).backward()
    if i % 4 == 3: opt.step(); opt.zero_grad(set_to_none=False); record(net)
""",
    "accumulation and clipping": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01); norms = []
for i in range(8):
    (F.mse_loss(net(part(x) + i), part(y)) / 4).backward()
    if i % 4 == 3:
        norms.append(nn.utils.clip_grad_norm_(net.parameters(), 0.1).item()); opt.step()
        opt.zero_grad(); record(net)
see(norms=norms)
""",
    "backward in one cell, step in the next": NET
    + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)\n"
    + 2 * "F.mse_loss(net(part(x)), part(y)).backward()\n# %%\nopt.step(); record(net)\n# %%\n",
    "never cleared": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.01)
for _ in range(4): F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
""",
    "cleared between backward and step": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
for i in range(5):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward()
    if i % 2: opt.zero_grad()
    opt.step(); record(net)
""",
    "a step that is skipped": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01); norms = []
for i in range(6):
    opt.zero_grad(); F.mse_loss(net(part(x) * (100 if i == 2 else 1)), part(y)).backward()
    norms.append(torch.stack([p.grad.norm() for p in net.parameters()]).norm().item())
    if norms[-1] < 10: opt.step()
    record(net)
see(norms=norms)
""",
    "gradient norm noted by hand": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward()
    see(norm=sum(p.grad.pow(2).sum() for p in net.parameters()).sqrt().item())
    with torch.no_grad():
        for p in net.parameters(): p.grad.mul_(0.5).add_(0.01 * p)
    opt.step(); record(net)
""",
    "autocast to bfloat16": NET
    + """
net = Net(); opt = torch.optim.AdamW(net.parameters(), 0.01); scaler = torch.amp.GradScaler("cpu")
for _ in range(4):
    with torch.autocast("cpu", torch.bfloat16): loss = F.mse_loss(net(part(x)).float(), part(y))
    opt.zero_grad(); scaler.scale(loss).backward(); scaler.step(opt); scaler.update(); record(net)
see(scale=scaler.get_scale())
""",
    "a scaler meets infinities in one row": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for i in range(6):
    rows = x.clone(); rows[-1] *= float("inf") if i in (2, 3) else 1
    opt.zero_grad(); loss = F.mse_loss(net.head(net.body(part(rows))), part(y))
    scaler.scale(loss).backward(); scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt); scaler.update(); record(net); see(scale=scaler.get_scale())
""",
    "schedulers that count": NET
    + """
from torch.optim import lr_scheduler as L
plans = [
    lambda o: L.StepLR(o, 2, 0.5), lambda o: L.MultiStepLR(o, [1, 3]),
    lambda o: L.ExponentialLR(o, 0.8),
    lambda o: L.CosineAnnealingLR(o, 4), lambda o: L.CosineAnnealingWarmRestarts(o, 2),
    lambda o: L.LambdaLR(o, lambda n: 1 / (1 + n)), lambda o: L.MultiplicativeLR(o, lambda n: 0.9),
    lambda o: L.OneCycleLR(o, 0.5, total_steps=6), lambda o: L.CyclicLR(o, 0.01, 0.1, 2),
    lambda o: L.LinearLR(o), lambda o: L.PolynomialLR(o, 4), lambda o: L.ConstantLR(o),
    lambda o: L.SequentialLR(
        o, [L.LinearLR(o, 0.1, total_iters=2), L.CosineAnnealingLR(o, 4)], [2]),
    lambda o: L.ChainedScheduler([L.ConstantLR(o), L.ExponentialLR(o, 0.9)]),
]
for plan in plans:
    net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9); schedule = plan(opt)
    for _ in range(5):
        opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); schedule.step()
    record(net); see(lr=schedule.get_last_lr())
""",
    "plateau of an evaluation": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.5)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=1, threshold=0.1)
for _ in range(12):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
    with torch.no_grad(): score = F.mse_loss(net(x), y)
    schedule.step(score); see(lr=schedule.get_last_lr(), score=score.item())
""",
    "early stop by an evaluation": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.5); best = float("inf")
for epoch in range(30):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
    net.eval()
    with torch.no_grad(): score = F.mse_loss(net(x), y).item()
    net.train()
    if score > best - 0.005: break
    best = score
see(epoch=epoch, best=best)
""",
    "averaged models of all kinds": NET
    + """
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
averages = [AveragedModel(net), AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
            AveragedModel(net, avg_fn=lambda a, p, n: a + (p - a) / (n + 1))]
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step()
    for one in averages: one.update_parameters(net)
    record(net, *averages); see(count=[int(one.n_averaged) for one in averages])
""",
    "swa with update_bn": """
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
opt = torch.optim.SGD(net.parameters(), 0.1); swa = AveragedModel(net)
for _ in range(3):
    for a, b in loader:
        opt.zero_grad(); F.mse_loss(net(a), b).backward(); opt.step()
    swa.update_parameters(net); record(net)
update_bn(loader, swa); record(swa, *swa.buffers())
swa.eval()
with torch.no_grad(): record(swa(x))
""",
    "ema with buffers, evaluated": """
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
ema = copy.deepcopy(net).eval()
opt = torch.optim.SGD(net.parameters(), 0.1)
@torch.no_grad()
def update():
    for a, b in zip(ema.state_dict().values(), net.state_dict().values()):
        a.copy_(0.9 * a + 0.1 * b if a.is_floating_point() else b)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); update()
    record(net, ema, *ema.buffers())
""",
    "optimizer deleted and made anew": NET
    + "net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)"
    + SGD_LOOP
    + "del opt; opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)"
    + SGD_LOOP,
    "optimizer state saved and loaded": NET
    + "net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)"
    + SGD_LOOP
    + """
state = copy.deepcopy(opt.state_dict()); opt = torch.optim.Adam(net.parameters(), 0.5)
opt.load_state_dict(state)
"""
    + SGD_LOOP,
    "learning rate set by hand": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(5):
    for group in opt.param_groups: group["lr"] = 0.1 / (i + 1)
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
""",
    "every optimizer of torch": NET
    + """
o = torch.optim
kinds = [o.SGD, o.Adam, o.AdamW, o.Adagrad, o.RMSprop, o.Adadelta, o.Adamax, o.NAdam, o.RAdam]
kinds += [o.ASGD, o.Rprop, o.Adafactor]
for kind in kinds:
    net = Net(); opt = kind(net.parameters(), lr=0.01)
    for _ in range(3):
        opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
""",
    "muon for matrices, adam for the rest": NET
    + """
net = Net(); matrices = [p for p in net.parameters() if p.ndim == 2]
muon = getattr(torch.optim, "Muon", torch.optim.SGD)(matrices, lr=0.01)
adam = torch.optim.Adam([p for p in net.parameters() if p.ndim != 2], 0.01)
for _ in range(3):
    muon.zero_grad(); adam.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward()
    muon.step(); adam.step(); record(net)
""",
    "variants of an optimizer": NET
    + """
variants = [
    dict(amsgrad=True), dict(maximize=True), dict(fused=True), dict(foreach=True),
    dict(foreach=False),
    dict(lr=torch.tensor(0.01)), dict(weight_decay=0.1), dict(betas=(0.5, 0.9)),
]
for variant in variants:
    net = Net(); opt = torch.optim.Adam(net.parameters(), **{"lr": 0.01} | variant)
    for _ in range(3):
        opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step()
    record(net)
momentums = dict(nesterov=True, momentum=0.9), dict(momentum=0.9, dampening=0.1)
for variant in (*momentums, dict(fused=True)):
    net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1, **variant)
    for _ in range(3):
        opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step()
    record(net)
""",
    "an optimizer of the user's own": NET
    + """
class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr): super().__init__(params, {"lr": lr})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p)); m.lerp_(p.grad, 0.1)
                p -= group["lr"] * m.tanh()
net = Net(); opt = Lion(net.parameters(), 0.05)
"""
    + SGD_LOOP,
    "an optimizer that is no torch.optim": NET
    + """
class Adam:
    def __init__(self, params, lr): self.params, self.lr, self.m = list(params), lr, {}
    def zero_grad(self):
        for p in self.params: p.grad = None
    def step(self):
        with torch.no_grad():
            for p in self.params:
                self.m[p] = 0.9 * self.m.get(p, 0) + p.grad; p -= self.lr * self.m[p]
net = Net(); opt = Adam(net.parameters(), 0.05)
"""
    + SGD_LOOP,
    "an optimizer in an optimizer": NET
    + """
class Lookahead(torch.optim.Optimizer):
    def __init__(self, base, k=2):
        self.base, self.k, self.n = base, k, 0
        self.slow = [[p.clone().detach() for p in g["params"]] for g in base.param_groups]
        super().__init__([p for g in base.param_groups for p in g["params"]], {})
    def step(self, closure=None):
        self.base.step(); self.n += 1
        if self.n % self.k == 0:
            for slow, g in zip(self.slow, self.base.param_groups):
                for s, p in zip(slow, g["params"]): s.lerp_(p.detach(), 0.5); p.data.copy_(s)
net = Net(); opt = Lookahead(torch.optim.SGD(net.parameters(), 0.1))
"""
    + SGD_LOOP,
    "a closure for sgd": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
def closure():
    opt.zero_grad(); loss = F.mse_loss(net(part(x)), part(y)); loss.backward(); return loss
for _ in range(4): opt.step(closure); record(net)
""",
    "gradients by autograd.grad, assigned": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9); ps = list(net.parameters())
for _ in range(4):
    loss = F.mse_loss(net(part(x)), part(y))
    for p, g in zip(ps, torch.autograd.grad(loss, ps)): p.grad = g
    nn.utils.clip_grad_value_(ps, 100.0); opt.step(); record(net)
""",
    "an optimizer's own hooks": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1); order = []
opt.register_step_pre_hook(lambda o, a, k: order.append(float(net.head.bias.grad)))
opt.register_step_post_hook(lambda o, a, k: order.append(float(net.head.bias)))
"""
    + SGD_LOOP
    + "see(order=order)",
    "weights clamped and tied by hand after each step": NET
    + """
net, mirror = Net(), Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step()
    with torch.no_grad():
        for a, b in zip(net.parameters(), mirror.parameters()): a.clamp_(-0.3, 0.3); b.copy_(a)
    record(net, mirror)
""",
    "continual training of a growing set": NET
    + """
nets, opts = [], []
for i in range(3):
    nets.append(Net()); opts.append(torch.optim.SGD(nets[-1].parameters(), 0.1))
    for _ in range(2):
        loss = sum(F.mse_loss(n(part(x)), part(y)) for n in nets)
        for o in opts: o.zero_grad()
        loss.backward()
        for o in opts: o.step()
        record(*nets)
""",
    "plateau of the training loss": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.5)
plan = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=1, threshold=0.1)
for _ in range(12):
    opt.zero_grad(); loss = F.mse_loss(net(part(x)), part(y)); loss.backward(); opt.step()
    plan.step(loss.item()); record(net); see(rate=opt.param_groups[0]["lr"])
""",
    "training by hand in a gradient's hook": NET
    + """
net = Net()
def step(p):
    with torch.no_grad(): p -= 0.1 * p.grad; p.grad = None
for p in net.parameters(): p.register_post_accumulate_grad_hook(step)
for _ in range(4): F.mse_loss(net(part(x)), part(y)).backward(); record(net)
""",
    "clipping and stepping in a gradient's hook": NET
    + """
net = Net(); opts = {p: torch.optim.SGD([p], 0.1, momentum=0.9) for p in net.parameters()}
def step(p):
    nn.utils.clip_grad_norm_([p], 0.1); opts[p].step(); opts[p].zero_grad()
for p in net.parameters(): p.register_post_accumulate_grad_hook(step)
for _ in range(4): F.mse_loss(net(part(x)), part(y)).backward(); record(net)
""",
    "a hook that comes after training began": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
def clamp(p): p.grad.clamp_(-0.05, 0.05)
for i in range(6):
    if i == 2: hooks = [p.register_post_accumulate_grad_hook(clamp) for p in net.parameters()]
    if i == 4: [hook.remove() for hook in hooks]
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
""",
    "autograd.grad, applied by hand": NET
    + """
net = Net(); params = list(net.parameters())
for i in range(6):
    out = net.head(part(x).repeat(1, 2)) if i % 3 == 2 else net(part(x))
    gradients = torch.autograd.grad(F.mse_loss(out, part(y)), params, allow_unused=True)
    see(unused=[g is None for g in gradients])
    with torch.no_grad():
        for p, g in zip(params, gradients):
            if g is not None: p -= 0.1 * g
    record(net)
""",
    "autograd.grad with respect to inputs": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    inputs = part(x).clone().requires_grad_()
    slopes, = torch.autograd.grad(net(inputs).sum(), inputs)
    opt.zero_grad(); F.mse_loss(net(part(x) + slopes), part(y)).backward(); opt.step(); record(net)
""",
    "by hand, one model after the other": """
models = [nn.Linear(4, 1) for _ in range(3)]; loose = [torch.ones(4, 1, requires_grad=True)] * 2
def fit(model, params):
    for _ in range(3):
        F.mse_loss(model(part(x)), part(y)).backward()
        with torch.no_grad():
            for p in params: p -= 0.1 * p.grad; p.grad = None
        record(*params)
for model in models: fit(model, list(model.parameters()))
for w in (torch.ones(4, 1, requires_grad=True), torch.zeros(4, 1, requires_grad=True)):
    fit(lambda rows: rows @ w, [w])
""",
    "a parameter put in place of another in its group": """
w = nn.Parameter(torch.ones(4, 1)); opt = torch.optim.SGD([w], 0.1); kept = []
for i in range(6):
    if i == 3:
        kept.append(w); w = nn.Parameter(w.detach().clone()); opt.param_groups[0]["params"] = [w]
    opt.zero_grad(); F.mse_loss(part(x) @ w, part(y)).backward(); opt.step(); record(w)
""",
    "autograd.grad, first order, then set": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1); call = torch.func.functional_call
for _ in range(4):
    slow = dict(net.named_parameters())
    inner = torch.autograd.grad(F.mse_loss(call(net, slow, (x,)), y), list(slow.values()))
    fast = {n: (p - 0.1 * g).detach().requires_grad_() for (n, p), g in zip(slow.items(), inner)}
    loss = F.mse_loss(call(net, fast, (part(x),)), part(y))
    outer = torch.autograd.grad(loss, list(fast.values()))
    for p, g in zip(net.parameters(), outer): p.grad = g
    opt.step(); record(net)
""",
}
