"""Training cells that users of other tools could not run, or that went wrong without a word."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.notebook.conftest import Notebook

IMPORTS = """
import contextlib, copy, gc, os, sys, time, warnings, weakref
import torch, torch.distributed as dist, torch.nn as nn, torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

def same(tensor):
    "Whether every rank holds these values."
    rows = [torch.empty_like(tensor) for _ in range(world_size)]
    dist.all_gather(rows, tensor.detach().contiguous())
    return all(torch.equal(rows[0], row) for row in rows)

def everyones(value):
    return ddp.gather(value)
"""
TWO = """
class Two(nn.Module):
    def __init__(self):
        super().__init__(); self.a, self.b = nn.Linear(3, 1), nn.Linear(3, 1)
    def forward(self, x): return self.a(x)
"""


@dataclass(frozen=True)
class Case:
    """Cells that must run to their end, and what they show."""

    cells: tuple[str, ...]
    shows: tuple[str, ...] = ()
    says: tuple[str, ...] = ()  # in a line of this package's own


CASES = {
    "A05 a second training run needs no restart": Case(
        (
            "net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), 0.1)\n"
            "net(torch.ones(2, 4)).sum().backward(); opt.step()",
            "with torch.no_grad(): print('again', tuple(net(torch.ones(1, 4)).shape))",
            "net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), 0.1)\n"
            "net(torch.ones(2, 4)).sum().backward(); opt.step(); print(same(net.weight))",
        ),
        ("again (1, 1)", "True"),
    ),
    "C01 unused parameters": Case(
        (
            TWO + "two = Two(); opt = torch.optim.SGD(two.parameters(), 0.1)\n"
            "for _ in range(3):\n"
            "    opt.zero_grad(); two(torch.randn(2, 3)).sum().backward(); opt.step()\n"
            "print('3 steps', same(two.a.weight), two.b.weight.grad)",
        ),
        ("3 steps True None",),
        ("b.weight",),
    ),
    "C02 a GAN in one module": Case(
        (
            "class GAN(nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__(); self.g, self.d = nn.Linear(2, 3), nn.Linear(3, 1)\n"
            "    def forward(self, x, mode): return self.g(x) if mode == 'g' else self.d(x)\n"
            "gan = GAN(); og = torch.optim.SGD(gan.g.parameters(), 0.1)\n"
            "od = torch.optim.SGD(gan.d.parameters(), 0.1)\n"
            "torch.manual_seed(rank)\n"
            "for _ in range(2):\n"
            "    fake = gan(torch.randn(4, 2), 'g')\n"
            "    od.zero_grad(); gan(fake.detach(), 'd').mean().backward(); od.step()\n"
            "    og.zero_grad(); (-gan(fake, 'd').mean()).backward(); og.step()\n"
            "print(same(gan.g.weight), same(gan.d.weight))",
        ),
        ("True True",),
    ),
    "C04 two forwards with BatchNorm before one backward": Case(
        (
            "disc = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))\n"
            "loss = disc(torch.randn(6, 4)).mean() - disc(torch.randn(6, 4)).mean()\n"
            "loss.backward(); print(same(disc[0].weight.grad), same(disc[1].running_mean))",
        ),
        ("True True",),
        ("BatchNorm normalises by the statistics of each rank's part",),
    ),
    "C06 frozen, and a layer replaced, after it was made": Case(
        (
            "net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))\n"
            "for p in net.parameters(): p.requires_grad = False\n"
            "net[2] = nn.Linear(8, 3); opt = torch.optim.SGD(net[2].parameters(), 0.1)\n"
            "torch.manual_seed(rank)\n"
            "for _ in range(3):\n"
            "    opt.zero_grad(); net(torch.randn(5, 4)).sum().backward(); opt.step()\n"
            "print(tuple(net[2].weight.shape), same(net[2].weight), net[0].weight.grad)",
        ),
        ("(3, 8) True None",),
    ),
    "C07 unfrozen in a later cell": Case(
        (
            "net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)); net[0].requires_grad_(False)\n"
            "net(torch.ones(1, 2)).sum().backward()",
            "net[0].requires_grad_(True); torch.manual_seed(rank)\n"
            "net(torch.randn(1, 2)).sum().backward(); print(same(net[0].weight.grad))",
        ),
        ("True",),
    ),
    "C08 weights drawn anew, of another seed on each rank": Case(
        (
            "torch.manual_seed(100 + rank); net = nn.Linear(3, 1)\n"
            "net.apply(lambda m: nn.init.normal_(m.weight) if hasattr(m, 'weight') else None)\n"
            "net(torch.ones(1, 3)).sum().backward(); print(same(net.weight), same(net.bias))",
        ),
        ("True True",),
        ("differed between ranks; all have rank 0's values now",),
    ),
    "C09 a loss computed past forward": Case(
        (
            "class M(nn.Module):\n"
            "    def __init__(self): super().__init__(); self.f = nn.Linear(2, 1)\n"
            "    def compute_loss(self, x): return self.f(x).pow(2).mean()\n"
            "net = M(); torch.manual_seed(rank)\n"
            "net.compute_loss(torch.randn(3, 2)).backward(); print(same(net.f.weight.grad))",
        ),
        ("True",),
    ),
    "C10 attributes, methods, class of the model": Case(
        (
            "class AE(nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__(); self.e, self.d = nn.Linear(4, 2), nn.Linear(2, 4)\n"
            "        self.latent = 2\n"
            "    def decode(self, z): return self.d(z)\n"
            "    def forward(self, x): return self.decode(self.e(x))\n"
            "ae = AE(); ae(torch.ones(1, 4)).sum().backward()\n"
            "print(ae.latent, tuple(ae.decode(torch.ones(1, 2)).shape), isinstance(ae, AE),"
            " type(ae) is AE, len(list(ae.e.parameters())))",
        ),
        ("2 (1, 4) True True 2",),
    ),
    "C11 attributes are set on the model": Case(
        (
            "class N(nn.Module):\n"
            "    def __init__(self): super().__init__(); self.fc = nn.Linear(2, 5)\n"
            "    def forward(self, x): return self.fc(x)\n"
            "net = N(); net(torch.ones(1, 2)).sum().backward()\n"
            "net.fc = nn.Linear(2, 3); net.steps = 7; torch.manual_seed(rank)\n"
            "net(torch.randn(1, 2)).sum().backward()\n"
            "print(net.fc.out_features, net.steps, same(net.fc.weight.grad))",
        ),
        ("3 7 True",),
    ),
    "C12 checkpoints with and without the prefix of DDP": Case(
        (
            "net = nn.Linear(3, 1); net(torch.ones(1, 3)).sum().backward()\n"
            "ones = {'module.weight': torch.ones(1, 3), 'module.bias': torch.ones(1)}\n"
            "net.load_state_dict(ones)\n"
            "fresh = nn.Linear(3, 1); fresh.load_state_dict(net.state_dict())\n"
            "print(fresh.bias.item(), list(net.state_dict()))",
        ),
        ("1.0 ['weight', 'bias']",),
        ("the keys begin with `module.`",),
    ),
    "C14 torch.compile": Case(
        (
            "net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))\n"
            "fast = torch.compile(net, backend='eager'); torch.manual_seed(rank)\n"
            "opt = torch.optim.SGD(net.parameters(), 0.1)\n"
            "for _ in range(2):\n"
            "    opt.zero_grad(); fast(torch.randn(3, 4)).sum().backward(); opt.step()\n"
            "print(same(net[0].weight))",
        ),
        ("True",),
    ),
    "C15 accumulation, with no_sync where there is one": Case(
        (
            "net = nn.Linear(2, 1); torch.manual_seed(rank)\n"
            "for i in range(4):\n"
            "    quiet = hasattr(net, 'no_sync') and i < 3\n"
            "    with net.no_sync() if quiet else contextlib.nullcontext():\n"
            "        (net(torch.randn(2, 2)).mean() / 4).backward()\n"
            "print(same(net.weight.grad))",
        ),
        ("True",),
    ),
    "C16 a layer checkpointed twice, reentrant": Case(
        (
            "from torch.utils.checkpoint import checkpoint\n"
            "class Net(nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__(); self.i, self.s = nn.Linear(3, 3), nn.Linear(3, 3)\n"
            "    def forward(self, x):\n"
            "        h = checkpoint(self.s, self.i(x), use_reentrant=True)\n"
            "        return checkpoint(self.s, h, use_reentrant=True)\n"
            "net = Net(); torch.manual_seed(rank)\n"
            "for _ in range(2): net(torch.randn(2, 3)).sum().backward()\n"
            "print(same(net.s.weight.grad))",
        ),
        ("True",),
    ),
    "C18 a sparse embedding": Case(
        (
            "emb = nn.Embedding(10, 4, sparse=True)\n"
            "opt = torch.optim.SparseAdam(emb.parameters())\n"
            "for _ in range(2):\n"
            "    opt.zero_grad(); emb(torch.tensor([rank, 3])).sum().backward(); opt.step()\n"
            "print(same(emb.weight))",
        ),
        ("True",),
    ),
    "C20 SyncBatchNorm on the CPU": Case(
        (
            "net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))\n"
            "net = nn.SyncBatchNorm.convert_sync_batchnorm(net)\n"
            "net(torch.randn(4, 3)).sum().backward(); print(type(net[1]).__name__)",
        ),
        ("SyncBatchNorm",),
        ("SyncBatchNorm synchronises on GPUs alone",),
    ),
    "C21 a copy for a moving average": Case(
        (
            "net = nn.Linear(2, 1); ema = copy.deepcopy(net).eval().requires_grad_(False)\n"
            "net(torch.ones(1, 2)).sum().backward(); other = copy.deepcopy(net)\n"
            "print(type(ema).__name__, type(other).__name__, list(copy.copy(net.state_dict())))",
        ),
        ("Linear Linear ['weight', 'bias']",),
    ),
    "C22 lazy layers": Case(
        (
            "net = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2))\n"
            "net(torch.ones(1, 5)); opt = torch.optim.SGD(net.parameters(), 0.1)\n"
            "torch.manual_seed(rank); net(torch.randn(4, 5)).sum().backward(); opt.step()\n"
            "print(same(net[0].weight))",
        ),
        ("True",),
    ),
    "C24 a model that differs between ranks, not trained": Case(
        (
            "emb = nn.Embedding(10 + rank, 2); print('made')",
            "t = torch.ones(1); dist.all_reduce(t); print(t.item())",
        ),
        ("made", "2.0"),
    ),
    "C25 a model on one rank alone": Case(
        (
            "if rank == 0:\n"
            "    probe = nn.Linear(2, 1); opt = torch.optim.SGD(probe.parameters(), 0.1)\n"
            "    for _ in range(3): probe(torch.ones(1, 2)).sum().backward(); opt.step()\n"
            "net = nn.Linear(3, 1); torch.manual_seed(rank)\n"
            "net(torch.randn(1, 3)).sum().backward(); print(same(net.weight.grad))",
        ),
        ("True",),
        ("probe (Linear): is not trained on every rank, so its gradients are not averaged",),
    ),
    "C28 all within a function": Case(
        (
            "def main():\n"
            "    net = nn.Linear(2, 1); opt = torch.optim.SGD(net.parameters(), 0.1)\n"
            "    torch.manual_seed(rank)\n"
            "    for _ in range(3):\n"
            "        opt.zero_grad(); net(torch.randn(4, 2)).mean().backward(); opt.step()\n"
            "    return net.weight.detach()\n"
            "print(same(main()))",
        ),
        ("True",),
    ),
    "C29 a DDP of the user's own": Case(
        (
            "from torch.nn.parallel import DistributedDataParallel as DDP\n"
            "raw = nn.Linear(2, 1); opt = torch.optim.SGD(raw.parameters(), 0.1)\n"
            "model = DDP(raw); torch.manual_seed(rank)\n"
            "model(torch.randn(2, 2)).sum().backward(); opt.step()\n"
            "print(model.module is raw, same(raw.weight), list(model.state_dict()))",
        ),
        ("True True ['module.weight', 'module.bias']",),
    ),
    "D01 another order in every epoch": Case(
        (
            "loader = DataLoader(list(range(16)), batch_size=4, shuffle=True)\n"
            "orders = [[int(i) for b in loader for i in b] for epoch in range(3)]\n"
            "print(orders[0] != orders[1] != orders[2])",
        ),
        ("True",),
    ),
    "D03 a metric over the whole test set": Case(
        (
            "test = DataLoader(TensorDataset(torch.ones(32, 1), torch.ones(32)), batch_size=8)\n"
            "correct = sum((b.squeeze(1) == t).sum().item() for b, t in test)\n"
            "print(correct / len(test.dataset))",
        ),
        ("1.0",),
    ),
    "D04 a stream is divided": Case(
        (
            "class Stream(IterableDataset):\n"
            "    def __iter__(self): return iter(range(8))\n"
            "mine = [int(i) for b in DataLoader(Stream(), batch_size=4) for i in b]\n"
            "print(sorted(sum(everyones(mine), [])))",
        ),
        ("[0, 1, 2, 3, 4, 5, 6, 7]",),
    ),
    "D07 fewer samples than two ranks can share": Case(
        (
            "loader = DataLoader(list(range(3)), batch_size=2, drop_last=True)\n"
            "n = sum(len(b) for b in loader); print(n, sum(float(b.sum()) for b in loader) / n)",
        ),
        ("2 0.5",),
    ),
    "D08 a download that all ranks begin": Case(
        (
            "import tempfile\n"
            "path = os.path.join(ddp.gather(tempfile.mkdtemp())[0], 'archive')\n"
            "def fetch(path):\n"
            "    if not os.path.exists(path):\n"
            "        with open(path, 'w') as f:\n"
            "            for _ in range(50): f.write('x' * 100); f.flush(); time.sleep(0.002)\n"
            "    return os.path.getsize(path)\n"
            "with ddp.rank0_first(): size = fetch(path)\n"
            "print(size)",
        ),
        ("5000",),
    ),
    "D09 one seed in a cell, the same numbers on all ranks": Case(
        ("torch.manual_seed(0); a, b = everyones(torch.randn(2).tolist()); print(a == b)",),
        ("True",),
    ),
    "D11 persistent workers": Case(
        (
            "class Squares(Dataset):\n"
            "    def __len__(self): return 8\n"
            "    def __getitem__(self, i): return torch.tensor(i * i)\n"
            "loader = DataLoader(Squares(), batch_size=4, num_workers=2, persistent_workers=True)\n"
            "print([b.tolist() for b in loader]); del loader",
        ),
        ("[[0, 1, 4, 9], [16, 25, 36, 49]]",),
    ),
    "D12 what a cell defines, in spawned workers": Case(
        (
            "def double(batch): return torch.tensor(batch) * 2\n"
            "loader = DataLoader(list(range(4)), batch_size=2, num_workers=1,"
            " collate_fn=lambda b: double(b), multiprocessing_context='spawn')\n"
            "print([b.tolist() for b in loader]); del loader",
        ),
        ("[[0, 2], [4, 6]]",),
    ),
    "D14 a batch has as many rows as was said": Case(
        (
            "test = DataLoader(torch.randn(12, 4), batch_size=8)\n"
            "print(tuple(next(iter(test)).view(8, 2, 2).shape))",
        ),
        ("(8, 2, 2)",),
    ),
    "F01 the process group is initialised again": Case(
        (
            "os.environ['MASTER_PORT'] = '12355'\n"
            "dist.init_process_group('gloo', rank=dist.get_rank(), world_size=2); print('first')",
            "dist.init_process_group('gloo'); print('second')",
        ),
        ("first", "second"),
    ),
    "F02 destroyed and initialised, again and again": Case(
        (
            "for i in range(3):\n"
            "    dist.destroy_process_group(); dist.init_process_group('gloo')\n"
            "    t = torch.ones(1); dist.all_reduce(t); print(i, t.item())",
        ),
        ("0 2.0\n1 2.0\n2 2.0",),
    ),
    "F05 a barrier without a warning": Case(
        (
            "with warnings.catch_warnings(record=True) as caught:\n"
            "    warnings.simplefilter('always'); dist.barrier()\n"
            "print([str(one.message) for one in caught])",
        ),
        ("[]",),
    ),
    "F07 mp.spawn, of as many and of fewer": Case(
        (
            "def demo(rank, size):\n"
            "    os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'] = 'localhost', '12355'\n"
            "    dist.init_process_group('gloo', rank=rank, world_size=size)\n"
            "    t = torch.ones(1); dist.all_reduce(t)\n"
            "    print(size, t.item(), dist.get_world_size()); dist.destroy_process_group()\n"
            "mp.spawn(demo, args=(2,), nprocs=2)\n"
            "mp.spawn(demo, args=(1,), nprocs=1)\n"
            "t = torch.ones(1); dist.all_reduce(t); print('all', t.item())",
        ),
        ("2 2.0 2\n1 1.0 1\nall 2.0",),
    ),
    "G05 a model made anew lets the former go": Case(
        (
            "net = nn.Linear(50, 50); old = weakref.ref(net)\n"
            "net(torch.ones(1, 50)).sum().backward()",
            "net = nn.Linear(50, 50); gc.collect(); print(old() is None)",
        ),
        ("True",),
    ),
}


@pytest.fixture(scope="module")
def ready(notebook: Notebook) -> Notebook:
    assert notebook.run(f"%%ddp\n{IMPORTS}").status == "ok"
    return notebook


@pytest.mark.parametrize("name", CASES)
def test_trained_as_it_stands(ready: Notebook, name: str) -> None:
    case = CASES[name]
    shown = said = ""
    for cell in case.cells:
        output = ready.run(f"%%ddp\n{cell}")
        assert output.status == "ok", output.error
        shown += output.text()
        said += "\n".join(output.data("text/plain"))
    for text in case.shows:
        assert text in shown
    for text in case.says:
        assert text in said


REFUSED = {
    "C24 a model that differs between ranks, trained": (
        "net = nn.Embedding(10 + rank, 2); opt = torch.optim.SGD(net.parameters(), 0.1)",
        "net (Embedding) is not the same model on all ranks",
    ),
    "D06 one rank makes one backward more": (
        "net = nn.Linear(2, 1)\nfor i in range(3 + rank): net(torch.ones(1, 2)).sum().backward()",
        "rank 1 waited in backward(), all_reduce #",
    ),
    "an attached model is trained on one rank alone": (
        "net(torch.ones(1, 2)).sum().backward()\n"
        "if rank == 0: net(torch.ones(1, 2)).sum().backward()",
        "rank 0 waited in backward(), all_reduce #",
    ),
    "a rank decides by its own loss": (
        "torch.manual_seed(rank); opt = torch.optim.SGD(net.parameters(), 0.1)\n"
        "loss = net(torch.randn(4, 2)).sum()\n"
        "opt.zero_grad(); loss.backward()\n"
        "opt.param_groups[0]['lr'] = abs(loss.item())\n"
        "opt.step()",
        "net (Linear) is not the same on all ranks any more: rank 0 and rank 1 differ",
    ),
    "one rank alone makes a collective that does not wait": (
        "if rank == 0: pending = dist.all_reduce(torch.ones(1), async_op=True)",
        "The ranks did not make the same collectives: rank 1 1 fewer than rank 0",
    ),
    "E03 a folder that one rank makes too late": (
        "import shutil, tempfile\n"
        "d = ddp.gather(tempfile.mkdtemp())[0] + '/made'\n"
        "if rank == 1: torch.save({}, f'{d}/r{rank}.pt')",
        "(rank 1)",
    ),
    "E09 sys.exit with a code": ("sys.exit(3)", "SystemExit: 3"),
    "mp.spawn of nothing": ("mp.spawn(print, nprocs=0)", "mp.spawn(nprocs=0) would run nothing"),
    "mp.spawn of more than there are": ("mp.spawn(print, nprocs=4)", "`%ddp restart -n 4`"),
    "a rank that is not this one": (
        "dist.init_process_group('gloo', rank=1 - rank, world_size=2)",
        "init_process_group asks for rank=1 on rank 0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_or_failed_with_the_cause(ready: Notebook, name: str) -> None:
    cell, said = REFUSED[name]
    output = ready.run(f"%%ddp\n{cell}")
    assert output.status == "error"
    told = "\n".join([output.error["evalue"], *output.error["traceback"]])
    assert said in told
    again = ready.run(
        "%%ddp\nfine = nn.Linear(2, 1); torch.manual_seed(rank)\n"
        "fine(torch.randn(2, 2)).sum().backward(); print(same(fine.weight.grad))"
    )
    assert again.text() == "True\n"


SEED = """
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data.distributed import DistributedSampler

class MyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
    def forward(self, batch):
        return self.layer(batch)

dataset, num_epochs = TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), 2
loss_fn, trained = nn.MSELoss(), {}

def train(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    model = MyModel()  # torch.cuda.set_device(rank) and .to(rank) are what a CPU cannot do
    ddp_model = DDP(model, device_ids=[rank])
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)

    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    train_loader = DataLoader(dataset, sampler=sampler, batch_size=8)

    for epoch in range(num_epochs):
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            outputs = ddp_model(inputs)
            loss = loss_fn(outputs, targets)
            loss.backward()
            optimizer.step()

    trained.update(model=model, steps=num_epochs * len(train_loader))
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = 2
    mp.spawn(train, args=(world_size,), nprocs=world_size)
    print(trained["steps"], same(trained["model"].layer.weight))
"""


def test_the_example_that_explains_ddp(ready: Notebook) -> None:
    """Its own group, DDP, sampler and ``mp.spawn``, as people write them."""
    output = ready.run(f"%%ddp\n{SEED}")
    assert output.text() == "8 True\n"
    assert output.data("text/html"), "the loss has a curve"
    later = ready.run("%%ddp\nprint(type(trained['model']).__name__); dist.barrier()")
    assert later.text() == "MyModel\n"


LOOP = """
torch.manual_seed(0)
x, y = torch.randn(80, 4), torch.randn(80, 1)
loader = DataLoader(TensorDataset(x, y), 20, shuffle=True)
def fresh():
    global model, opt
    model = nn.Linear(4, 1); opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
def train():
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        opt.zero_grad(); loss.backward(); opt.step()
    return same(model.weight)
fresh()
"""
STEP = "nn.functional.mse_loss(model(x[:9]), y[:9]).backward(); opt.step(); opt.zero_grad()"


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (f"if rank == 1: raise ValueError('corrupt')\n{STEP}", "ValueError: corrupt"),
        (f"if rank == 0:\n    for _ in range(3): {STEP}", "is not trained on every rank"),
        (
            "model = nn.Linear(4, 1)\nif rank == 0: nope\n"
            "opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9); train()",
            "NameError",
        ),
        (
            "for _ in range(2):\n    for a, b in loader:\n        loss = model(a).mean()\n"
            "        loss.backward(); opt.step()\n        if rank == 0: break",
            "in vain",
        ),
        (
            "if rank == 0:\n    for a, b in loader: pass",
            "A loader is read here, and rank 1 does not",
        ),
        (
            "own = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))\n"
            "for i in range(3):\n    if rank == 1 and i == 1: raise KeyError('oops')\n"
            "    own(x[:4]).sum().backward()",
            "KeyError: 'oops'",
        ),
        (
            "if rank == 0: dist.all_reduce(torch.ones(1), async_op=True).wait()",
            "waited in wait(), all_reduce #",
        ),
    ],
)
def test_the_next_cell_trains_all_ranks_alike(ready: Notebook, cell: str, said: str) -> None:
    ready.run(f"%%ddp\n{LOOP}")
    output = ready.run(f"%%ddp\n{cell}")
    told = "\n".join(output.data("text/plain"))
    if output.status == "error":
        told += "\n".join([output.error["evalue"], *output.error["traceback"]])
    assert said in told
    for _ in range(2):
        assert ready.run("%%ddp\nprint(train())").text() == "True\n"


def test_models_that_only_one_rank_has_beside_those_that_all_train(ready: Notebook) -> None:
    ready.run(f"%%ddp\n{LOOP}\ntrain()")
    output = ready.run(
        "%%ddp\nif rank == 0:\n"
        "    probe = nn.Linear(4, 1); own = torch.optim.SGD(probe.parameters(), 0.1)\n"
        "for a, b in loader:\n"
        "    nn.functional.mse_loss(model(a), b).backward(); opt.step(); opt.zero_grad()\n"
        "    if rank == 0: probe(a).mean().backward(); own.step()\n"
        "print(same(model.weight))"
    )
    assert output.text() == "True\n"


def test_a_backward_that_takes_its_time_waits_for_nobody(ready: Notebook) -> None:
    output = ready.run(
        "%%ddp\nclass Slow(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x): return x * 1\n"
        "    @staticmethod\n    def backward(ctx, g): time.sleep(2 * rank); return g\n"
        "if rank == 1: Slow.apply(torch.ones(2, requires_grad=True)).sum().backward()\n"
        "print('done')"
    )
    assert output.text() == "done\n"


def test_ranks_that_send_to_each_other(ready: Notebook) -> None:
    output = ready.run(
        "%%ddp\nsent, got = torch.ones(1) * rank, torch.zeros(1)\n"
        "pair = [dist.P2POp(dist.isend, sent, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]\n"
        "for work in dist.batch_isend_irecv(pair): work.wait()\nprint(ddp.gather(got.item()))"
    )
    assert output.text() == "[1.0, 0.0]\n"
