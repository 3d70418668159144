"""Loaders and other ways to get at the data: batches as the user asked, never cut by hand."""

from __future__ import annotations

from tests.rank.patterns.common import NET

SETUP = (
    """
import itertools, multiprocessing, random
import numpy as np
from torch.utils.data import (
    BatchSampler, ConcatDataset, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler,
    StackDataset, Subset, SubsetRandomSampler, TensorDataset, WeightedRandomSampler, random_split,
)
multiprocessing.set_start_method("fork", force=True); random.seed(0); np.random.seed(0)
"""
    + NET
    + """
inputs = torch.randn(29, 4); targets = inputs.sum(1, keepdim=True).sin()
data, first = TensorDataset(inputs, targets), TensorDataset(inputs[:24], targets[:24])
class Rows(Dataset):
    def __len__(self): return 24
    def __getitem__(self, i): return {"x": inputs[i], "y": targets[i], "name": f"row {i}"}
class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        k, n = (info.id, info.num_workers) if info else (0, 1)
        yield from zip(inputs[k:24:n], targets[k:24:n])
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.5)
def step(a, b):
    opt.zero_grad(); loss = F.mse_loss(net(a), b); loss.backward(); opt.step(); record(net)
    return loss
def fit(loader, epochs=2):
    for _ in range(epochs):
        steps = 0
        for a, b in loader: step(a, b); steps += 1
        see(steps=steps)
    return loader
def evaluate(loader):
    total = correct = 0
    for a, b in loader:
        out = net(a); total += F.mse_loss(out, b).item() * len(a)
        correct += ((out > 0) == (b > 0)).sum().item()
    return {"loss": total / len(loader.dataset), "accuracy": correct / len(loader.dataset)}
"""
)

_CELLS = {
    "shuffle": "see(n=len(fit(DataLoader(first, batch_size=8, shuffle=True))))",
    "in order": "see(n=len(fit(DataLoader(first, batch_size=8))))",
    "the last batch is smaller": "see(n=len(fit(DataLoader(data, batch_size=8, shuffle=True))))",
    "drop_last": "see(n=len(fit(DataLoader(data, batch_size=8, shuffle=True, drop_last=True))))",
    "a batch that does not divide": "see(n=len(fit(DataLoader(data, batch_size=6, shuffle=True))))",
    "a batch smaller than the world": "fit(DataLoader(data, batch_size=1, shuffle=True), epochs=1)",
    "default batch size, in order": "fit(DataLoader(first), epochs=1)",
    "data shorter than the world": "fit(DataLoader(Subset(data, [3]), batch_size=8, shuffle=True))",
    "data shorter than a batch": "fit(DataLoader(data, batch_size=64, shuffle=True))",
    "a sampler": "fit(DataLoader(data, 8, sampler=RandomSampler(data)))",
    "a sampler with replacement": """
fit(DataLoader(data, 8, sampler=RandomSampler(data, replacement=True, num_samples=20)))
""",
    "a weighted sampler": """
weights = (targets[:, 0] > 0).double() + 0.1
fit(DataLoader(data, batch_size=8, sampler=WeightedRandomSampler(weights, len(weights))))
""",
    "a subset sampler, train and validation": """
order = list(range(29)); random.shuffle(order)
train = DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(order[5:]))
valid = DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(order[:5]))
for _ in range(2):
    fit(train, 1)
    with torch.no_grad(): see(loss=sum(F.mse_loss(net(a), b).item() for a, b in valid))
""",
    "a sampler of the user's own": """
class Longest(Sampler):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __iter__(self): return iter(sorted(range(self.n), key=lambda i: random.random()))
fit(DataLoader(data, 8, sampler=Longest(29)))
""",
    "a batch sampler of the user's own": """
class Buckets:
    def __iter__(self):
        order = np.random.permutation(24).tolist()
        for start in (0, 8, 12): yield order[start : start + (8 if start != 8 else 4)]
    def __len__(self): return 3
fit(DataLoader(data, batch_sampler=Buckets()))
""",
    "batch_size None, with a sampler of batches": """
fit(DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 8, False)))
""",
    "batch_size None, ready batches": """
batches = [(a, b) for a, b in zip(inputs[:24].split(8), targets[:24].split(8))]
fit(DataLoader(batches, batch_size=None, shuffle=True))
""",
    "a stream": "fit(DataLoader(Stream(), batch_size=8))",
    "a stream, batch_size None": "fit(DataLoader(Stream(), batch_size=None), epochs=1)",
    "a stream, workers": "fit(DataLoader(Stream(), batch_size=4, num_workers=2))",
    "a stream that shuffles": """
class Shuffled(Stream):
    def __iter__(self):
        items = list(super().__iter__()); random.shuffle(items); return iter(items)
fit(DataLoader(Shuffled(), batch_size=8))
""",
    "workers, forked": "fit(DataLoader(data, 8, shuffle=True, num_workers=2))",
    "workers, in order": "fit(DataLoader(first, 8, num_workers=1))",
    "workers, spawned": """
fit(DataLoader(first, 8, shuffle=True, num_workers=1, multiprocessing_context="spawn"), epochs=1)
""",
    "workers that stay": """
loader = fit(DataLoader(data, 8, shuffle=True, num_workers=1, persistent_workers=True), epochs=3)
with torch.no_grad(): see(**evaluate(loader))
fit(loader, 1); del loader
""",
    "random_split": """
train, valid = random_split(data, [24, 5]); loader = DataLoader(train, 8, shuffle=True)
for _ in range(2):
    fit(loader, 1)
    with torch.no_grad(): see(**evaluate(DataLoader(valid, 8)))
""",
    "random_split by fractions, seeded": """
train, valid = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(1))
fit(DataLoader(train, 8, shuffle=True)); see(n=[len(train), len(valid)])
""",
    "subset": "fit(DataLoader(Subset(data, range(3, 27)), 8, shuffle=True))",
    "datasets joined": "fit(DataLoader(ConcatDataset([data, first]), 8, shuffle=True))",
    "datasets stacked": "fit(DataLoader(StackDataset(inputs[:24], targets[:24]), 8, shuffle=True))",
    "a list of pairs": "fit(DataLoader(list(zip(inputs, targets)), batch_size=8, shuffle=True))",
    "a batch in a dict": """
for batch in DataLoader(Rows(), batch_size=8, shuffle=True):
    step(batch["x"], batch["y"]); see(named=len(batch["name"]) == len(batch["x"]))
""",
    "a collate_fn": """
def collate(rows):
    return torch.stack([r["x"] for r in rows]) * 2, torch.stack([r["y"] for r in rows])
fit(DataLoader(Rows(), batch_size=8, shuffle=True, collate_fn=collate))
fit(DataLoader(Rows(), batch_size=8, collate_fn=lambda rows: collate(rows)))
""",
    "__getitems__": """
class Fast(Rows):
    def __getitems__(self, indices): return [(inputs[i], targets[i]) for i in indices]
fit(DataLoader(Fast(), batch_size=8, shuffle=True))
""",
    "left early, and again": """
loader = DataLoader(data, 8, shuffle=True)
for _ in range(3):
    for i, (a, b) in enumerate(loader):
        if i == 2: break
        step(a, b)
fit(loader, 1)
""",
    "left early, and again, in order": """
loader = DataLoader(data, 8)
for _ in range(3):
    for i, (a, b) in enumerate(loader):
        step(a, b)
        if i == 1: break
fit(loader, 1)
""",
    "zipped": """
other = DataLoader(first, 8, shuffle=True); steps = 0
for (a, b), (c, d) in zip(DataLoader(data, 8, shuffle=True), other):
    opt.zero_grad(); (F.mse_loss(net(a), b) + F.mse_loss(net(c), d)).backward(); opt.step()
    record(net); steps += 1
see(steps=steps)
""",
    "two loaders by turns": """
one, two = DataLoader(data, 8, shuffle=True), DataLoader(first, 4, shuffle=True)
for _ in range(2): fit(one, 1); fit(two, 1)
""",
    "one loader within another": """
for a, b in DataLoader(first, 8, shuffle=True):
    for c, d in DataLoader(data, 16, shuffle=True): step(c, d)
    step(a, b)
""",
    "kept across cells": """
loader = DataLoader(data, 8, shuffle=True)
# %%
fit(loader)
# %%
fit(loader, 1); see(n=len(loader))
""",
    "a generator of the user's own": """
loader = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(7)); fit(loader)
loader.generator.manual_seed(7); fit(loader, 1); see(drawn=torch.rand(2).tolist())
""",
    "seeded by hand before each epoch": """
loader = DataLoader(data, 8, shuffle=True)
for epoch in range(3): torch.manual_seed(epoch); fit(loader, 1)
""",
    "sliced by hand": """
for epoch in range(2):
    order = torch.randperm(29)
    for start in range(0, 29, 8):
        rows = order[start : start + 8]; step(inputs[rows], targets[rows])
""",
    "split by hand, all at once": """
for a, b in zip(inputs.split(8), targets.split(8)): step(a, b)
for _ in range(3): step(inputs, targets)
""",
    "rows drawn by numpy and by random": """
for _ in range(3):
    rows = np.random.choice(29, 8, replace=False); step(inputs[rows], targets[rows])
    rows = random.sample(range(29), 8); step(inputs[rows], targets[rows])
""",
    "validation each epoch, under no_grad": """
train, valid = DataLoader(first, 8, shuffle=True), DataLoader(data, 8)
for epoch in range(3):
    net.train(); fit(train, 1); net.eval()
    with torch.no_grad(): see(epoch=epoch, **evaluate(valid))
""",
    "validation each epoch, decorated": """
@torch.no_grad()
def validate(loader): net.eval(); found = evaluate(loader); net.train(); return found
train = DataLoader(first, 8, shuffle=True)
for epoch in range(3):
    fit(train, 1); see(**validate(DataLoader(data, 8, shuffle=True))); see(**validate(train))
""",
    "validation each epoch, under inference_mode": """
train, valid = DataLoader(first, 8, shuffle=True), DataLoader(data, 8, num_workers=1)
for epoch in range(2):
    fit(train, 1)
    with torch.inference_mode(): see(**evaluate(valid))
""",
    "validation each epoch, with gradients on": """
train, valid = DataLoader(first, 8, shuffle=True), DataLoader(data, 8)
for epoch in range(3): fit(train, 1); net.eval(); see(**evaluate(valid)); net.train()
""",
    "predictions gathered, then scored": """
fit(DataLoader(first, 8, shuffle=True)); found, wanted = [], []
with torch.no_grad():
    for a, b in DataLoader(data, 8): found.append(net(a)); wanted.append(b)
see(shape=list(torch.cat(found).shape), score=F.l1_loss(torch.cat(found), torch.cat(wanted)).item())
""",
    "accumulation over a loader": """
loader = DataLoader(data, 4, shuffle=True); k = 3; opt.zero_grad()
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        (F.mse_loss(net(a), b) / k).backward()
        if (i + 1) % k == 0 or i + 1 == len(loader): opt.step(); opt.zero_grad(); record(net)
""",
    "a schedule over a loader": """
loader = DataLoader(data, 8, shuffle=True)
plan = torch.optim.lr_scheduler.OneCycleLR(opt, 0.3, epochs=2, steps_per_epoch=len(loader))
for epoch in range(2):
    for a, b in loader: step(a, b); plan.step(); see(lr=plan.get_last_lr())
""",
    "cycled": """
for (a, b), i in zip(itertools.cycle(DataLoader(first, 8, shuffle=True)), range(7)): step(a, b)
""",
    "endless, by next": """
loader = DataLoader(data, 8, shuffle=True); batches = iter(loader)
for i in range(9):
    try: a, b = next(batches)
    except StopIteration: batches = iter(loader); a, b = next(batches)
    step(a, b)
""",
    "endless, by a generator": """
def endless(loader):
    while True: yield from loader
batches = endless(DataLoader(first, 8, shuffle=True))
for _ in range(7): step(*next(batches))
""",
    "the first batch alone": """
a, b = next(iter(DataLoader(data, 8, shuffle=True)))
for _ in range(5): step(a, b)
""",
    "the first batch alone, in order": """
a, b = next(iter(DataLoader(data, 8)))
for _ in range(5): step(a, b)
""",
    "looked at, then trained": """
loader = DataLoader(data, 8, shuffle=True); a, b = next(iter(loader))
see(columns=list(a.shape[1:]))
fit(loader)
""",
    "all batches kept in a list": """
batches = list(DataLoader(data, 8, shuffle=True))
for _ in range(2):
    for a, b in batches: step(a, b)
""",
    "all batches kept in a list, in order": """
batches = list(DataLoader(data, 8))
for _ in range(2):
    for a, b in batches: step(a, b)
""",
    "tqdm": """
from tqdm import tqdm
for epoch in range(2):
    bar = tqdm(DataLoader(data, 8, shuffle=True), disable=False, file=io.StringIO())
    see(total=bar.total)
    for a, b in bar: bar.set_postfix(loss=step(a, b).item())
    see(n=bar.n)
""",
    "enumerated, with a progress line": """
lines = []
for i, (a, b) in enumerate(DataLoader(data, 8, shuffle=True), 1):
    step(a, b); lines.append(f"{i}/29")
see(lines=lines)
""",
    "in a function": """
def loaders(batch_size):
    train, valid = random_split(data, [24, 5])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(valid, batch_size)
def main():
    train, valid = loaders(8)
    for _ in range(2):
        fit(train, 1)
        with torch.no_grad(): see(**evaluate(valid))
main()
""",
    "a loader anew for each epoch": """
for epoch in range(3): fit(DataLoader(data, 8, shuffle=True), 1)
""",
    "a loader in a class": """
class Module:
    def __init__(self): self.loader = DataLoader(data, 8, shuffle=True)
    def __iter__(self): return iter(self.loader)
    def __len__(self): return len(self.loader)
source = Module(); fit(source); see(n=len(source))
""",
    "a loader wrapped in a generator": """
def halved(loader):
    for a, b in loader: yield a / 2, b
for _ in range(2):
    for a, b in halved(DataLoader(data, 8, shuffle=True)): step(a, b)
""",
    "a subclass of DataLoader": """
class Mine(DataLoader):
    def __iter__(self):
        for a, b in super().__iter__(): yield a * 2, b
fit(Mine(data, batch_size=8, shuffle=True))
""",
    "prefetched by one": """
def ahead(loader):
    kept = None
    for batch in loader:
        if kept is not None: yield kept
        kept = batch
    yield kept
for _ in range(2):
    for a, b in ahead(DataLoader(data, 8)): step(a, b)
""",
    "a batch cut into micro-batches": """
for a, b in DataLoader(first, 8, shuffle=True):
    opt.zero_grad()
    for c, d in zip(a.chunk(2), b.chunk(2)): (F.mse_loss(net(c), d) / 2).backward()
    opt.step(); record(net)
""",
    "lbfgs over a loader": """
first = TensorDataset(inputs[:24].double(), targets[:24].double()); net.double()
opt = torch.optim.LBFGS(net.parameters(), 0.1, max_iter=3, line_search_fn="strong_wolfe")
for a, b in DataLoader(first, 8, shuffle=True):
    def closure(): opt.zero_grad(); loss = F.mse_loss(net(a), b); loss.backward(); return loss
    opt.step(closure); record(net)
""",
    "a gan over a loader": """
G, D = nn.Linear(4, 4), nn.Linear(4, 1)
og, od = torch.optim.Adam(G.parameters(), 0.01), torch.optim.Adam(D.parameters(), 0.01)
for a, _ in DataLoader(data, 8, shuffle=True):
    fake = G(-a); od.zero_grad(); (D(a) - D(fake.detach())).mean().backward(); od.step()
    og.zero_grad(); D(fake).mean().backward(); og.step(); record(G, D)
""",
    "early stop over a loader, by an evaluation": """
train, valid = DataLoader(first, 8, shuffle=True), DataLoader(data, 8); best = float("inf")
for epoch in range(20):
    fit(train, 1)
    with torch.no_grad(): score = evaluate(valid)["loss"]
    if score > best: break
    best = score
see(epoch=epoch, best=best)
""",
    "plateau over a loader, by an evaluation": """
train, valid = DataLoader(first, 8, shuffle=True), DataLoader(data, 8)
plan = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=0.3)
for epoch in range(4):
    fit(train, 1)
    with torch.no_grad(): plan.step(evaluate(valid)["loss"])
    see(lr=plan.get_last_lr())
""",
    "cross validation": """
for fold in range(2):
    held = set(range(fold * 12, fold * 12 + 12)); net = Net()
    opt = torch.optim.SGD(net.parameters(), 0.1)
    fit(DataLoader(Subset(data, [i for i in range(24) if i not in held]), 4, shuffle=True), 1)
    with torch.no_grad(): see(**evaluate(DataLoader(Subset(data, sorted(held)), 8)))
""",
    "an endless stream": """
class Endless(IterableDataset):
    def __iter__(self):
        while True: yield from zip(inputs, targets)
for i, (a, b) in enumerate(DataLoader(Endless(), batch_size=8)):
    if i == 5: break
    step(a, b)
for _, (a, b) in zip(range(3), DataLoader(Endless(), batch_size=8, num_workers=1)): step(a, b)
""",
    "indices in a list": """
fit(DataLoader(data, 8, sampler=[5, 3, 8, 1, 13, 21, 2, 0, 4, 9, 10, 11]))
fit(DataLoader(data, batch_sampler=[[0, 1, 2, 3], [7, 6, 5, 4, 3, 2], [11, 10, 9, 8]]))
""",
    "rows by name": """
class Named(Dataset):
    def __getitem__(self, key): i = int(key[1:]); return inputs[i], targets[i]
fit(DataLoader(Named(), 4, sampler=[f"r{i}" for i in range(12)]))
""",
    "the data change between epochs": """
subset = Subset(data, list(range(12))); loader = DataLoader(subset, 4, shuffle=True)
for epoch in range(3):
    fit(loader, 1); subset.indices += [12 + 4 * epoch + i for i in range(4)]; see(n=len(loader))
""",
    "a batch size that grows": """
for size in (4, 8, 12): fit(DataLoader(data, size, shuffle=True), 1)
""",
    "train and val by turns, in one loop": """
loaders = {"train": DataLoader(first, 4, shuffle=True), "val": DataLoader(data, 4)}; best = -1
for epoch in range(3):
    for phase in ("train", "val"):
        net.train(phase == "train"); total = correct = 0
        for a, b in loaders[phase]:
            opt.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                out = net(a); loss = F.mse_loss(out, b)
                if phase == "train": loss.backward(); opt.step(); record(net)
            total += loss.item() * len(a); correct += ((out > 0) == (b > 0)).sum().item()
        if phase == "val":
            see(loss=total / len(data), accuracy=correct / len(data))
            if correct > best: best, kept = correct, copy.deepcopy(net.state_dict())
net.load_state_dict(kept); record(net)
""",
    "features computed once": """
with torch.no_grad(): features = torch.cat([net.encode(a) for a, _ in DataLoader(first, 8)])
again = torch.cat([net.encode(a).detach() for a, _ in DataLoader(first, 8)])
see(same=torch.equal(features, again))
net = nn.Linear(8, 1); opt = torch.optim.SGD(net.parameters(), 0.1)
fit(DataLoader(TensorDataset(features, targets[:24]), 8, shuffle=True))
""",
    "several steps on each batch": """
for loader in (DataLoader(first, 8, shuffle=True), DataLoader(first, 8)):
    for a, b in loader:
        for _ in range(3): step(a, b)
""",
    "active learning": """
known = list(range(8))
for round in range(3):
    fit(DataLoader(Subset(data, known), 4, shuffle=True), 2)
    with torch.no_grad(): doubt = torch.cat([net(a).abs() for a, _ in DataLoader(data, 8)])[:, 0]
    known += [i for i in doubt.argsort().tolist() if i not in known][:4]; see(known=known)
""",
    "rows moved at random": """
class Noisy(Rows):
    def __getitem__(self, i):
        return inputs[i] + 0.1 * torch.randn(4), targets[i] * random.choice([1, 1])
fit(DataLoader(Noisy(), 8, shuffle=True))
fit(DataLoader(Noisy(), 8, shuffle=True, num_workers=2), 1)
""",
    "noise drawn for each batch": """
for epoch in range(2):
    for a, b in DataLoader(first, 8, shuffle=True):
        t = torch.randint(0, 10, (len(a), 1)) / 10; step(a * (1 - t) + torch.randn_like(a) * t, b)
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1); fit(DataLoader(first, 8, shuffle=True))
""",
    "batches mixed": """
for a, b in DataLoader(first, 8, shuffle=True):
    order, k = torch.randperm(len(a)), float(np.random.beta(1, 1))
    step(k * a + (1 - k) * a[order], k * b + (1 - k) * b[order])
""",
    "train and val by phases, both shuffled": """
loaders = {"train": DataLoader(first, 4, shuffle=True), "val": DataLoader(data, 4, shuffle=True)}
best_acc, best = -1.0, None
for epoch in range(3):
    for phase in ["train", "val"]:
        net.train() if phase == "train" else net.eval()
        corrects = 0
        for a, b in loaders[phase]:
            opt.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                out = net(a); loss = F.mse_loss(out, b)
                if phase == "train":
                    loss.backward(); opt.step(); record(net)
            corrects += ((out > 0) == (b > 0)).sum().item()
        if phase == "val":
            see(accuracy=corrects / 29)
            if corrects > best_acc: best_acc, best = corrects, copy.deepcopy(net.state_dict())
net.load_state_dict(best); record(net)
""",
    "an evaluation that calls backward": """
fit(DataLoader(first, 8, shuffle=True), 1); total = 0.0
for a, b in DataLoader(data, 8):
    delta = torch.zeros_like(a, requires_grad=True); F.mse_loss(net(a + delta), b).backward()
    net.zero_grad(); total += F.mse_loss(net(a + 0.1 * delta.grad.sign()), b).item() * len(a)
see(loss=total / 29)
""",
    "trained in evaluation mode": """
net.eval(); fit(DataLoader(first, 8, shuffle=True)); net.train(); fit(DataLoader(first, 8))
""",
    "a plateau of the epoch's training loss": """
plan = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0, threshold=0.2)
for epoch in range(6):
    total, loader = 0.0, DataLoader(first, 8, shuffle=True)
    for a, b in loader: total += step(a, b).item()
    plan.step(total / len(loader)); see(rate=opt.param_groups[0]["lr"])
""",
    "batch norm, and a last batch of two": """
net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), 0.1); rows = TensorDataset(inputs[:18], targets[:18])
see(n=len(fit(DataLoader(rows, 8, shuffle=True))))
""",
    "no training after all": """
loader = DataLoader(data, 8)
see(mean=sum(a.sum().item() for a, _ in loader) / 29, n=len(loader)); fit(loader, 1)
""",
}

DATA = {f"loader: {name}": SETUP + cell for name, cell in _CELLS.items()}
