"""How models are called, and backward."""

from __future__ import annotations

from tests.rank.patterns.common import NET, SGD_LOOP

CALLS = {
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
    "looked at under no_grad, then trained": NET
    + """
net = Net()
with torch.no_grad(): see(before=net(x).mean().item())
opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(3):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
    net.eval()
    with torch.inference_mode(): see(after=net(x).mean().item())
    net.train()
""",
    "looked at with gradients, never backward": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    kept = net(x).mean(); out = net(part(x)); net(part(x))
    opt.zero_grad(); F.mse_loss(out, part(y)).backward(); opt.step(); record(net)
    see(kept=kept.item())
""",
    "eval inside training": NET
    + """
net = Net(); net.body = nn.Sequential(net.body, nn.Dropout(0.0))
opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(4):
    net.eval() if i % 2 else net.train()
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
    see(training=net.training)
""",
    "inputs in a dict, outputs in a dict": """
class Dicts(nn.Module):
    def __init__(self):
        super().__init__(); self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 1)
    def forward(self, batch, *, scale=1.0):
        h = self.a(batch["inputs"]).relu() * scale; out = self.b(h)
        return {"logits": out, "loss": F.mse_loss(out, batch["labels"]), "hidden": (h, [h])}
net = Dicts(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    out = net({"inputs": part(x), "labels": part(y)}, scale=0.5)
    opt.zero_grad(); out["loss"].backward(); opt.step(); record(net)
""",
    "inputs and outputs in dataclasses": """
from dataclasses import dataclass
@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor
@dataclass
class Output:
    loss: torch.Tensor
    parts: tuple
class Model(nn.Module):
    def __init__(self):
        super().__init__(); self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 1)
    def forward(self, batch):
        h = self.a(batch.x).relu(); return Output(F.mse_loss(self.b(h), batch.y), (h, batch))
net = Model(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    opt.zero_grad(); net(Batch(part(x), part(y))).loss.backward(); opt.step(); record(net)
""",
    "nested tuples, keywords only, nothing positional": """
class Odd(nn.Module):
    def __init__(self):
        super().__init__(); self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, *, pair, flag=False, **rest):
        first, (second, _) = pair
        return ((self.b(self.a(first)), rest), self.b(second) if flag else None)
net = Odd(); opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(4):
    (out, rest), more = net(pair=(part(x), (part(-x), None)), flag=i % 2 == 1, note="n")
    loss = F.mse_loss(out, part(y)) + (0 if more is None else more.pow(2).mean())
    opt.zero_grad(); loss.backward(); opt.step(); record(net)
""",
    "a callable class that is no module": """
class Predictor:
    def __init__(self):
        self.layers = [nn.Linear(4, 8), nn.Linear(8, 1)]
    def parameters(self):
        return [p for layer in self.layers for p in layer.parameters()]
    def __call__(self, x):
        return self.layers[1](self.layers[0](x).relu())
model = Predictor(); opt = torch.optim.Adam(model.parameters(), 0.01)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(model(part(x)), part(y)).backward(); opt.step()
    record(*model.parameters())
""",
    "called in a thread": NET
    + """
import threading
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
def step():
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
for _ in range(4):
    thread = threading.Thread(target=step); thread.start(); thread.join()
""",
    "forward in a thread, backward here": NET
    + """
from concurrent.futures import ThreadPoolExecutor
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
with ThreadPoolExecutor(1) as pool:
    for _ in range(4):
        out = pool.submit(net, part(x)).result()
        opt.zero_grad(); F.mse_loss(out, part(y)).backward(); opt.step(); record(net)
""",
    "a function of autograd of the user's own": NET
    + """
class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w); return (x @ w).sign() * 0.5
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors; return g @ w.T, x.T @ g
class Quantized(nn.Module):
    def __init__(self):
        super().__init__(); self.w = nn.Parameter(torch.randn(4, 8)); self.out = nn.Linear(8, 1)
    def forward(self, x):
        return self.out(Straight.apply(x, self.w))
net = Quantized(); opt = torch.optim.SGD(net.parameters(), 0.1)
"""
    + SGD_LOOP,
    "a backward within a backward": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
class Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x); return net.body(x).detach()
    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_(); net.body(x).backward(g)
        return x.grad
for _ in range(4):
    h = torch.tanh(Inner.apply(part(x).clone().requires_grad_()))
    opt.zero_grad(); F.mse_loss(net.head(h), part(y)).backward(); opt.step(); record(net)
""",
    "hooks on tensors": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1); shapes = []
def note(g): shapes.append(list(g.shape[1:])); return g * 0.5
for _ in range(4):
    h = net.encode(part(x)); h.register_hook(note); h.retain_grad()
    opt.zero_grad(); F.mse_loss(net.head(h), part(y)).backward(); opt.step(); record(net)
see(shapes=shapes, kept=list(h.grad.shape[1:]))
""",
    "activations caught by hooks": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1); caught = {}
net.body.register_forward_hook(lambda m, i, o: caught.update(h=o))
net.head.register_forward_pre_hook(lambda m, i: (i[0] * 1.5,))
for _ in range(4):
    opt.zero_grad(); out = net(part(x))
    (F.mse_loss(out, part(y)) + 0.1 * caught["h"].pow(2).mean()).backward(); opt.step(); record(net)
""",
    "backward on chosen inputs": """
G, D = nn.Linear(2, 4), nn.Linear(4, 1); z = torch.randn(16, 2)
og, od = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
for _ in range(4):
    og.zero_grad(); od.zero_grad(); fake = D(G(part(z))); real = D(part(x))
    (real - fake).mean().backward(inputs=list(D.parameters()), retain_graph=True)
    (-fake.mean()).backward(inputs=list(G.parameters())); og.step(); od.step(); record(G, D)
""",
    "backward of no scalar": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    out = net(part(x)); opt.zero_grad()
    out.backward(gradient=2 * (out - part(y)).detach() / len(out))
    opt.step(); record(net)
""",
    "torch.autograd.backward": NET
    + """
from torch.autograd import backward
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    out = net(part(x)); opt.zero_grad(); backward(F.mse_loss(out, part(y)), retain_graph=True)
    torch.autograd.backward((out,), (torch.ones_like(out) / len(out),)); opt.step(); record(net)
""",
    "a loss for each output, in a loop": NET
    + """
net = Net(); heads = nn.ModuleList(nn.Linear(8, 1) for _ in range(3))
opt = torch.optim.Adam([*net.body.parameters(), *heads.parameters()], 0.01)
for _ in range(4):
    opt.zero_grad(); h = net.encode(part(x))
    for i, head in enumerate(heads): F.mse_loss(head(h), part(y) * i).backward(retain_graph=i < 2)
    opt.step(); record(net, heads)
""",
    "second order, as a penalty on weights": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    loss = F.mse_loss(net(part(x)), part(y))
    gradients = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
    opt.zero_grad(); (loss + 0.1 * sum(g.sum() for g in gradients)).backward(); opt.step()
    record(net)
""",
    "sharpness-aware, two backwards a step": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward()
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
        moved = [p.grad * 0.05 / norm for p in net.parameters()]
        for p, m in zip(net.parameters(), moved): p.add_(m)
    opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward()
    with torch.no_grad():
        for p, m in zip(net.parameters(), moved): p.sub_(m)
    opt.step(); record(net)
""",
    "checkpointing of a sequence": """
from torch.utils.checkpoint import checkpoint_sequential
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), 0.01)
for i in range(6):
    h = part(x).clone().requires_grad_()
    out = checkpoint_sequential(net, 2, h, use_reentrant=i % 2 == 0)
    opt.zero_grad(); F.mse_loss(out, part(y)).backward(); opt.step(); record(net)
""",
    "compiled, eager": NET
    + """
net = torch.compile(Net(), backend="eager"); opt = torch.optim.Adam(net.parameters(), 0.01)
"""
    + SGD_LOOP,
    "a compiled loss and a compiled step": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
@torch.compile(backend="aot_eager")
def loss_of(a, b): return F.mse_loss(net(a), b)
@torch.compile(backend="eager")
def step(a, b):
    loss = F.mse_loss(net(a), b); loss.backward(); return loss.detach()
for i in range(4):
    opt.zero_grad()
    if i % 2: step(part(x), part(y))
    else: loss_of(part(x), part(y)).backward()
    opt.step(); record(net)
""",
    "a recursive call": """
class Deep(nn.Module):
    def __init__(self):
        super().__init__(); self.cell, self.out = nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, x, depth=3):
        return self.forward(torch.tanh(self.cell(x)), depth - 1) if depth else self.out(x)
net = Deep(); opt = torch.optim.SGD(net.parameters(), 0.1)
"""
    + SGD_LOOP,
    "a different depth each step": """
class Deep(nn.Module):
    def __init__(self):
        super().__init__(); self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.out = nn.Linear(4, 1)
    def forward(self, x, depth):
        for layer in self.layers[:depth]: x = torch.tanh(layer(x))
        return self.out(x)
net = Deep(); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
for i in range(6):
    opt.zero_grad(); F.mse_loss(net(part(x), i % 4), part(y)).backward(); opt.step(); record(net)
""",
    "siamese": NET
    + """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    a, b, c = net.encode(part(x)), net.encode(part(x) + 0.1), net.encode(part(-x))
    opt.zero_grad(); F.triplet_margin_loss(a, b, c).backward(); opt.step(); record(net.body)
""",
    "an actor and a critic": """
actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
groups = [{"params": actor.parameters()}, {"params": critic.parameters(), "lr": 0.05}]
opt = torch.optim.Adam(groups, 0.01)
for _ in range(4):
    value = critic(part(x)); logp = actor(part(x)).log_softmax(1)[:, 0]
    advantage = (part(y) - value).detach()[:, 0]
    opt.zero_grad(); (-(logp * advantage).mean() + F.mse_loss(value, part(y))).backward()
    opt.step()
    record(actor, critic)
""",
    "a vae with noise of its own": """
class VAE(nn.Module):
    def __init__(self):
        super().__init__(); self.enc, self.dec = nn.Linear(4, 4), nn.Linear(2, 4)
    def forward(self, x, noise):
        mean, logvar = self.enc(x).chunk(2, 1)
        return self.dec(mean + noise * (logvar / 2).exp()), mean, logvar
net = VAE(); opt = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(4):
    noise = torch.randn(16, 2); out, mean, logvar = net(part(x), part(noise))
    kl = -0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).sum(1).mean()
    opt.zero_grad(); (F.mse_loss(out, part(x)) + kl).backward(); opt.step(); record(net)
""",
    "deep q, with a target net": NET
    + """
net, target = Net(), Net(); target.load_state_dict(net.state_dict())
opt = torch.optim.RMSprop(net.parameters(), 0.01)
for i in range(6):
    with torch.no_grad(): wanted = part(y) + 0.9 * target(part(-x))
    opt.zero_grad(); F.smooth_l1_loss(net(part(x)), wanted).backward(); opt.step()
    if i % 3 == 2: target.load_state_dict(net.state_dict())
    record(net, target)
""",
    "gradients through a model into images": NET
    + """
net = Net().eval().requires_grad_(False); image = nn.Parameter(torch.zeros(1, 4))
opt = torch.optim.Adam([image], 0.05)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(net(image + part(x)), part(y)).backward(); opt.step(); record(image)
""",
    "anomalies detected, tensors saved elsewhere": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    with torch.autograd.set_detect_anomaly(True), torch.autograd.graph.save_on_cpu():
        opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
""",
    "under a profiler": NET
    + """
from torch.profiler import ProfilerActivity, profile, record_function
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
with profile(activities=[ProfilerActivity.CPU]):
    for _ in range(3):
        with record_function("step"):
            opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step()
        record(net)
""",
    "reinforce, in an environment": NET
    + """
policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
opt = torch.optim.Adam(policy.parameters(), 0.01)
for episode in range(4):
    state, logps, rewards = torch.zeros(4), [], []
    for t in range(5 + episode):
        chosen = torch.distributions.Categorical(logits=policy(state)); action = chosen.sample()
        logps.append(chosen.log_prob(action))
        state = state * 0.9 + (2 * action - 1) * torch.randn(4)
        rewards.append(-state.abs().sum().item())
    opt.zero_grad(); (-torch.stack(logps) * sum(rewards)).mean().backward(); opt.step()
    record(policy)
    see(rewards=rewards)
""",
    "adversarial training": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    delta = torch.zeros_like(part(x), requires_grad=True)
    F.mse_loss(net(part(x) + delta), part(y)).backward()
    moved = part(x) + 0.1 * delta.grad.sign()
    opt.zero_grad(); F.mse_loss(net(moved), part(y)).backward(); opt.step(); record(net)
""",
    "gradients begun with a penalty, and noise put in": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    for p in net.parameters(): p.grad = 0.01 * p.detach().clone()
    F.mse_loss(net(part(x)), part(y)).backward()
    for p in net.parameters(): p.grad += 0.01 * torch.randn_like(p.grad)
    opt.step(); record(net)
""",
    "gradients of two tasks, kept apart": NET
    + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
def gradient(loss):
    opt.zero_grad(); loss.backward(retain_graph=True)
    return torch.cat([p.grad.flatten() for p in net.parameters()])
for _ in range(4):
    out = net(part(x)); a, b = gradient(F.mse_loss(out, part(y))), gradient(out.pow(2).mean())
    if (a @ b) < 0: a, b = a - (a @ b) / (b @ b) * b, b - (a @ b) / (a @ a) * a
    for p, g in zip(net.parameters(), (a + b).split([p.numel() for p in net.parameters()])):
        p.grad = g.view_as(p).clone()
    opt.step(); record(net)
""",
}
