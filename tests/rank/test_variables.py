"""What cells have made means the same on another rank."""

from __future__ import annotations

from typing import Any

import pytest

from ddp_magic.rank.variables import differing, own_ranks
from tests.rank.harness import RankFailed, run_each

_MOVE = "from tests.rank.moving import move\nleft_out = move()"
_MODEL = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
for _ in range(3):
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    schedule.step()
"""

# By name: the cell that rank 0 runs, then what must be true on rank 1.
CASES: dict[str, tuple[str, str]] = {
    "the optimizer holds the model's parameters": (
        _MODEL,
        "[p is q for p, q in zip(model.parameters(), optimizer.param_groups[0]['params'])]"
        " + [set(optimizer.state) == set(model.parameters()), schedule.optimizer is optimizer,"
        " optimizer.param_groups[0]['lr'] < 0.02, model[1].num_batches_tracked == 3,"
        " int(optimizer.state[model[0].weight]['step']) == 3]",
    ),
    "gradients": (
        f"{_MODEL}\nkept = model[2].weight.grad",
        "[model[2].weight.grad is kept, kept.abs().sum() > 0]",
    ),
    "a step goes on as it was": (
        f"{_MODEL}\ncopy = __import__('copy').deepcopy(model.state_dict())",
        "[all(torch.equal(copy[n], v) for n, v in model.state_dict().items()),"
        " type(optimizer).step.hooked, optimizer.step.__name__ == 'step']",
    ),
    "hooks around step, and their order": (
        f"{_MODEL}\nsteps = []\n"
        "optimizer.register_step_post_hook(lambda o, a, k: steps.append(o is optimizer))",
        "[optimizer.step() is None, steps == [True]]",
    ),
    "a parametrized layer": (
        "import torch\nfrom torch import nn\n"
        "from torch.nn.utils.parametrizations import spectral_norm, weight_norm\n"
        "model = nn.Sequential(weight_norm(nn.Linear(3, 3)), spectral_norm(nn.Linear(3, 1)))\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\nx = torch.ones(2, 3)\n"
        "model.eval(); out = model(x).detach()",
        "[torch.equal(model(x), out), isinstance(model[0], nn.Linear),"
        " {id(p) for p in model.parameters()} =="
        " {id(p) for p in optimizer.param_groups[0]['params']}]",
    ),
    "tied weights": (
        "import torch\nfrom torch import nn\na, b = nn.Linear(3, 3), nn.Linear(3, 3)\n"
        "b.weight = a.weight",
        "[a.weight is b.weight]",
    ),
    "views of one storage": (
        "import torch\nbase = torch.arange(6.)\nrow, flat = base.view(2, 3)[1], base.view(-1)\n"
        "bits = base.view(torch.int32)",
        "[base.zero_() is base, row.sum() == 0, flat.sum() == 0, bits.sum() == 0]",
    ),
    "one tensor under two names": (
        "import torch\na = [torch.ones(2)]\nb = {'a': a, 'same': a[0]}",
        "[b['a'] is a, b['same'] is a[0]]",
    ),
    "functions see the live variables": (
        "scale = 2\ndef f(x, *, y=1):\n    'doc'\n    return g(x) * scale + y\n"
        "def g(x): return x + 1",
        "[f.__globals__ is globals(), f(1) == 5, globals().update(scale=10) is None, f(1) == 21,"
        " f.__doc__ == 'doc', f.__module__ == '__main__', f.__code__.co_filename == '<cell 0>']",
    ),
    "closures share what they share": (
        "def make():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n"
        "        return n\n"
        "    def get(): return n\n    def fact(k): return k * fact(k - 1) if k else 1\n"
        "    return up, get, fact\nup, get, fact = make()\nup()",
        "[up() == 2, get() == 2, fact(4) == 24]",
    ),
    "decorated functions": (
        "import functools\ncalls = []\ndef logged(f):\n    @functools.wraps(f)\n"
        "    def inner(*a):\n        calls.append(f.__name__)\n        return f(*a)\n"
        "    return inner\n"
        "@logged\ndef double(x): return 2 * x\n"
        "@functools.lru_cache(maxsize=8)\ndef cached(x): return double(x)\n"
        "half = functools.partial(logged(lambda x, y: x / y), 1)",
        "[double(2) == 4, cached(3) == 6, cached(3) == 6, half(2) == 0.5,"
        " calls == ['double', 'double', '<lambda>'], double.__wrapped__.__globals__ is globals(),"
        " cached.cache_parameters()['maxsize'] == 8]",
    ),
    "classes are those of their instances": (
        "import enum, collections, dataclasses, abc\n"
        "class Base(abc.ABC):\n    def __init__(self, x): self.x = x\n"
        "    @abc.abstractmethod\n    def f(self): ...\n"
        "class Child(Base):\n    made = 0\n    def __init__(self, x):\n"
        "        super().__init__(x)\n        Child.made += 1\n    def f(self): return self.x\n"
        "    @property\n    def twice(self): return 2 * self.x\n"
        "    @classmethod\n    def of(cls, x): return cls(x)\n"
        "class Color(enum.Enum):\n    RED = 1\n    GREEN = 2\n"
        "Point = collections.namedtuple('Point', 'x y', defaults=(0,))\n"
        "@dataclasses.dataclass(frozen=True)\nclass Config:\n    lr: float\n"
        "    tags: list = dataclasses.field(default_factory=list)\n"
        "child, red, point, config = Child(3), Color.RED, Point(1), Config(0.1)",
        "[type(child) is Child, child.f() == 3, child.twice == 6, Child.of(4).f() == 4,"
        " Child.made == 2, red is Color.RED, Color(2) is Color.GREEN, type(point) is Point,"
        " point._replace(y=5) == (1, 5), isinstance(config, Config), config == Config(0.1),"
        " dataclasses.replace(config, lr=1).lr == 1, Config(2).tags == [],"
        " Child.f.__globals__ is globals()]",
    ),
    "a dataclass can be derived from": (
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int",
        "[dataclasses.fields(A)[0].default is dataclasses.MISSING,"
        " dataclasses.make_dataclass('B', [('y', int)], bases=(A,))(1, 2).y == 2]",
    ),
    "lambdas in containers, methods, partials": (
        "from functools import partial, cached_property\n"
        "table = {'f': lambda x: x + offset, 'g': [lambda: table]}\noffset = 1\n"
        "class A:\n    def m(self): return self\n    @cached_property\n    def c(self): return 7\n"
        "a = A()\nbound = a.m",
        "[table['f'](1) == 2, table['g'][0]() is table, bound() is a, a.c == 7]",
    ),
    "hooks of modules and tensors": (
        "import torch\nseen = []\nm = torch.nn.Linear(2, 1)\n"
        "m.register_forward_hook(lambda mod, i, o: seen.append(mod is m))\n"
        "m.weight.register_hook(lambda g: g * 0)",
        "[m(torch.ones(1, 2)).sum().backward() is None, seen == [True], m.weight.grad.sum() == 0]",
    ),
    "modules are imported": (
        "import torch.nn.functional as F, math\nfrom torch import nn\nfrom json import dumps",
        "[F is __import__('torch').nn.functional, nn is __import__('torch').nn,"
        " dumps is __import__('json').dumps, math.pi > 3]",
    ),
    "its own rank": (
        "local_rank = RANK = my_rank = 0\nrank_id = '0'\nother = 0\nranks = 0\nrank = 0\n"
        "from torch.utils.data import DistributedSampler\n"
        "sampler = DistributedSampler(range(4), 2, 0, shuffle=False)\nns = globals()",
        "[local_rank == RANK == my_rank == rank == 1, rank_id == '1', other == ranks == 0,"
        " list(sampler) == [1, 3], ns is globals()]",
    ),
    "loaders, one with workers that live": (
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "data = TensorDataset(torch.arange(8.))\nloader = DataLoader(data, batch_size=4)\n"
        "lively = DataLoader(data, 4, num_workers=1, persistent_workers=True)\n"
        "for (first,) in lively: pass\ndel first",
        "[loader.dataset is data is lively.dataset, lively._iterator is None,"
        " loader.batch_sampler.sampler.data_source is data]",
    ),
    "what is computed comes without its graph": (
        "import torch\nw = torch.ones(2, requires_grad=True)\nloss = (w * 3).sum()",
        "[loss == 6, not loss.requires_grad, w.requires_grad]",
    ),
    "sparse, complex, half, meta, empty and lazy tensors": (
        "import torch\ns = torch.eye(3).to_sparse()\nc = torch.ones(2, dtype=torch.complex64)\n"
        "b = torch.ones(2, dtype=torch.bfloat16)\nm = torch.empty(2, device='meta')\n"
        "e = torch.empty(0)\nq = torch.nn.LazyLinear(2)\nt = torch.ones(2, 3).t()",
        "[s.to_dense().sum() == 3, c.sum() == 2, b.dtype == torch.bfloat16, m.is_meta,"
        " e.numel() == 0, q(torch.ones(1, 5)).shape == (1, 2), t.shape == (3, 2)]",
    ),
    "weak references and recursion": (
        "import weakref\nclass A: pass\na = A()\na.me = a\nr = weakref.ref(a)\n"
        "gone = weakref.ref(A())\nl = []\nl.append(l)",
        "[r() is a, a.me is a, gone() is None, l[0] is l]",
    ),
    "a program's functions keep its globals": (
        "scope = {'__name__': '__main__', 'factor': 3}\n"
        "exec('def f(x): return h(x) * factor\\ndef h(x): return x + 1', scope)\n"
        "f, h = scope['f'], scope['h']\ndel scope\nfactor = 100",
        "[f(1) == 6, f.__globals__ is h.__globals__, f.__globals__ is not globals()]",
    ),
}
_LEFT_OUT = """
import threading, socket, io, tempfile, torch
from torch.utils.data import DataLoader
good = {'x': torch.ones(2)}
def count():
    yield 1
gen = count()
held = [good, gen]
batches = iter(DataLoader([1, 2]))
file = tempfile.TemporaryFile('w+')
thread = threading.Thread(target=print)
sock = socket.socket()
class Refuses:
    def __reduce__(self): raise ValueError('not me')
class Breaks:
    def __getstate__(self): return {'a': 1}
    def __setstate__(self, state): raise OSError('only here')
refuses, breaks = Refuses(), Breaks()
uses = [breaks]
last = [good, Refuses]
lock = threading.Lock()
"""


def _program(define: str, check: str) -> tuple[str, ...]:
    indented = "\n".join(f"    {line}" for line in define.strip().splitlines())
    return f"if rank == 0:\n{indented}", _MOVE, f"found = {check} if rank == 1 else []"


@pytest.fixture(scope="module")
def found() -> dict[str, list[dict[str, Any]] | RankFailed]:
    programs = {name: _program(*case) for name, case in CASES.items()}
    left = "{'names': [n for n in globals() if not n.startswith('_')], 'same': last[0] is good}"
    programs["left out"] = _program(_LEFT_OUT, left)
    return run_each(2, programs, collect=("found", "left_out"), wrap=False)


@pytest.mark.parametrize("name", CASES)
def test_it_means_the_same(found: dict[str, Any], name: str) -> None:
    ranks = found[name]
    if isinstance(ranks, RankFailed):
        raise ranks
    assert ranks[0]["left_out"] == {}
    assert [bool(one) for one in ranks[1]["found"]] == [True] * len(ranks[1]["found"])
    assert ranks[1]["found"]


def test_what_cannot_move_is_left_out_by_name(found: dict[str, Any]) -> None:
    ranks = found["left out"]
    if isinstance(ranks, RankFailed):
        raise ranks
    left_out = ranks[0]["left_out"]
    assert left_out == {
        "gen": "a generator",
        "held": "holds a generator",
        "batches": "an iterator of a DataLoader",
        "file": "an open file",
        "thread": "a thread",
        "sock": "a socket",
        "refuses": "ValueError: not me",
        "breaks": "OSError: only here",
        "uses": "OSError: only here",
    }
    there = ranks[1]["found"]
    assert {"good", "count", "Refuses", "Breaks", "last", "lock"} <= set(there["names"])
    assert not left_out.keys() & set(there["names"])
    assert there["same"]


def test_numbers_that_differ_between_ranks() -> None:
    plains: dict[int, dict[str, Any]] = {
        0: {"rank": 0, "lr": 0.1, "seed": 1, "only": 1, "lora_rank": 0},
        2: {"rank": 2, "lr": 0.2, "seed": 1, "lora_rank": 0},
    }
    assert own_ranks(plains, 0) == {"rank"}
    assert differing(plains, 0) == ["lr"]
