"""Loaders on real ranks: every pattern yields what one process gets, divided among the ranks."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_post_hooks
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ddp_magic.rank.loaders import LoaderSharder
from tests.rank.harness import ListReport, run_on_ranks, run_single

WORLDS = [2, 4]

SETUP = """
import multiprocessing
import random
import numpy as np
import torch
from torch.utils.data import (
    BatchSampler, ConcatDataset, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler,
    SequentialSampler, Subset, SubsetRandomSampler, WeightedRandomSampler, random_split,
)

multiprocessing.set_start_method("fork", force=True)
random.seed(0)
np.random.seed(0)

class Squares(Dataset):
    def __init__(self, size): self.size = size
    def __len__(self): return self.size
    def __getitem__(self, index): return torch.as_tensor(index) ** 2

class Chunks(Dataset):
    def __len__(self): return 6
    def __getitem__(self, index): return torch.arange(4) + 4 * index

class Stream(IterableDataset):
    def __init__(self, size, shuffled=False): self.size, self.shuffled = size, shuffled
    def __len__(self): return self.size
    def __iter__(self):
        items = list(range(self.size))
        info = torch.utils.data.get_worker_info()
        if self.shuffled: random.shuffle(items)
        return iter(items[info.id :: info.num_workers] if info else items)

class Bunches(Sampler):
    def __init__(self, size, batch): self.size, self.batch = size, batch
    def __len__(self): return self.size // self.batch
    def __iter__(self):
        order = np.random.permutation(self.size)
        for start in range(0, self.size - self.batch + 1, self.batch):
            yield order[start : start + self.batch].tolist()

class Eager(Bunches):
    def __iter__(self):
        return iter(torch.randperm(self.size).split(self.batch))

class Lazy(Sampler):
    def __init__(self, size): self.size = size
    def __len__(self): return self.size
    def __iter__(self):
        for _ in range(self.size): yield random.randrange(self.size)

class MyLoader(DataLoader):
    def __iter__(self):
        for batch in super().__iter__(): yield batch

def doubled(samples): return torch.stack([torch.as_tensor(s) for s in samples]) * 2

results = {}
def keep(name, loader, epochs=3):
    lengths = len(loader) if hasattr(loader.sampler, "__len__") or name.startswith("stream") else -1
    seen = [[torch.as_tensor(b).flatten().tolist() for b in loader] for _ in range(epochs)]
    results[name] = {"len": lengths, "epochs": seen, "after": torch.rand(3).tolist()}
"""

# Of each, `keep` notes the length, the batches of some epochs, and the random numbers after.
PATTERNS = {
    "shuffle": "keep(NAME, DataLoader(Squares(32), batch_size=8, shuffle=True))",
    "shuffle, uneven last": "keep(NAME, DataLoader(Squares(29), batch_size=8, shuffle=True))",
    "shuffle, drop_last": "keep(NAME, DataLoader(Squares(29), 8, shuffle=True, drop_last=True))",
    "batch that does not divide": "keep(NAME, DataLoader(Squares(29), 6, shuffle=True))",
    "batch smaller than the world": "keep(NAME, DataLoader(Squares(7), 1, shuffle=True))",
    "data shorter than the world": "keep(NAME, DataLoader(Squares(1), 8, shuffle=True))",
    "own generator": """
keep(NAME, DataLoader(Squares(32), 8, shuffle=True, generator=torch.Generator().manual_seed(5)))
""",
    "with replacement": """
sampler = RandomSampler(range(32), replacement=True, num_samples=70)
keep(NAME, DataLoader(Squares(32), 8, sampler=sampler))
""",
    "more than all": """
generator = torch.Generator().manual_seed(5)
sampler = RandomSampler(range(12), num_samples=40, generator=generator)
keep(NAME, DataLoader(Squares(12), 8, sampler=sampler))
""",
    "weighted": """
keep(NAME, DataLoader(Squares(32), 8, sampler=WeightedRandomSampler(torch.arange(1, 33.0), 40)))
""",
    "subset sampler": """
keep(NAME, DataLoader(Squares(32), 8, sampler=SubsetRandomSampler(range(20))))
""",
    "own sampler": "keep(NAME, DataLoader(Squares(32), 8, sampler=Lazy(32)))",
    "own batch sampler": "keep(NAME, DataLoader(Squares(32), batch_sampler=Bunches(32, 8)))",
    "own batch sampler, eager": "keep(NAME, DataLoader(Squares(32), batch_sampler=Eager(32, 8)))",
    "torch's batch sampler": """
keep(NAME, DataLoader(Squares(32), batch_sampler=BatchSampler(RandomSampler(range(32)), 8, False)))
""",
    "batch_size None": "keep(NAME, DataLoader(Chunks(), batch_size=None, shuffle=True))",
    "batches by sampler": """
keep(NAME, DataLoader(torch.arange(32), batch_size=None,
                      sampler=BatchSampler(RandomSampler(range(32)), 8, False)))
""",
    "random_split": """
keep(NAME, DataLoader(random_split(Squares(40), [32, 8])[0], 8, shuffle=True))
""",
    "subset": "keep(NAME, DataLoader(Subset(Squares(40), range(3, 35)), 8, shuffle=True))",
    "concatenated": """
keep(NAME, DataLoader(ConcatDataset([Squares(20), Squares(12)]), 8, shuffle=True))
""",
    "collate_fn": "keep(NAME, DataLoader(Squares(32), 8, shuffle=True, collate_fn=doubled))",
    "subclass": "keep(NAME, MyLoader(Squares(32), 8, shuffle=True))",
    "workers": "keep(NAME, DataLoader(Squares(32), 8, shuffle=True, num_workers=2))",
    "persistent workers": """
keep(NAME, DataLoader(Squares(32), 8, shuffle=True, num_workers=1, persistent_workers=True))
""",
    "own sampler, workers": """
keep(NAME, DataLoader(Squares(32), 8, sampler=Lazy(32), num_workers=1), epochs=2)
""",
    "stream": "keep(NAME, DataLoader(Stream(29), batch_size=8))",
    "stream, drop_last": "keep(NAME, DataLoader(Stream(29), batch_size=8, drop_last=True))",
    "stream, shuffled": "keep(NAME, DataLoader(Stream(32, shuffled=True), batch_size=8))",
    "stream, workers": """
keep(NAME, DataLoader(Stream(32, shuffled=True), batch_size=8, num_workers=2), epochs=2)
""",
    "stream, batch_size None": "keep(NAME, DataLoader(Stream(8), batch_size=None), epochs=1)",
    "break and again": """
loader = DataLoader(Squares(32), 8, shuffle=True)
for _ in range(3):
    for batch in loader: break
keep(NAME, loader)
""",
    "zipped": """
zipped = zip(DataLoader(Squares(32), 8, shuffle=True), DataLoader(Squares(24), 8, shuffle=True))
pairs = [(a.tolist(), b.tolist()) for a, b in zipped]
results[NAME] = {"len": 0, "epochs": [[a for a, b in pairs], [b for a, b in pairs]],
                 "after": torch.rand(3).tolist()}
""",
    "two iterators at once": """
loader = DataLoader(Squares(32), 8, shuffle=True)
first, second = iter(loader), iter(loader)
epochs = [[], []]
for _ in range(4):
    epochs[0].append(next(first).tolist()); epochs[1].append(next(second).tolist())
results[NAME] = {"len": 0, "epochs": epochs, "after": torch.rand(3).tolist()}
""",
}
CELLS = [f"NAME = {name!r}\n{code}" for name, code in PATTERNS.items()]


@pytest.fixture(scope="module")
def single() -> dict[str, Any]:
    return run_single(SETUP, *CELLS, collect=("results",))["results"]


@pytest.fixture(scope="module", params=WORLDS)
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return run_on_ranks(request.param, SETUP, *CELLS, collect=("results",))


@pytest.mark.parametrize("name", PATTERNS)
def test_ranks_hold_together_what_one_process_gets(
    name: str, ranks: list[dict[str, Any]], single: dict[str, Any]
) -> None:
    found = [rank["results"][name] for rank in ranks]
    expected = single[name]
    assert all(rank["len"] == expected["len"] for rank in found)
    assert all(rank["after"] == expected["after"] for rank in found), "random numbers drifted"
    for epoch, batches in enumerate(expected["epochs"]):
        parts = list(zip(*(rank["epochs"][epoch] for rank in found), strict=True))
        assert len(parts) == len(batches)
        for batch, held in zip(batches, parts, strict=True):
            _assert_equal_shares(batch, held)


def _assert_equal_shares(batch: list[int], held: tuple[list[int], ...]) -> None:
    assert len({len(part) for part in held}) == 1, "a rank would train on more than another"
    copies = len(held) * len(held[0]) // len(batch)
    assert Counter(chain(*held)) == Counter(batch * copies), "a sample weighs more than another"


@pytest.mark.parametrize("name", ["shuffle", "own batch sampler", "stream", "workers", "subset"])
def test_batch_that_divides_is_cut_into_a_part_per_rank(
    name: str, ranks: list[dict[str, Any]]
) -> None:
    sizes = {len(rank["results"][name]["epochs"][0][0]) for rank in ranks}
    assert sizes == {8 // len(ranks)}


@pytest.mark.parametrize("world_size", WORLDS)
def test_order_is_one_though_random_numbers_drifted(world_size: int) -> None:
    drift = """
seed = globals().get("rank", 0)
torch.manual_seed(seed); np.random.seed(seed); random.seed(seed)
"""
    names = [
        "shuffle", "own sampler", "own batch sampler, eager", "weighted", "zipped", "workers",
        "subset sampler", "two iterators at once", "stream, workers",
    ]  # fmt: skip
    cells = [f"{drift}NAME = {name!r}\n{PATTERNS[name]}" for name in names]
    single = run_single(SETUP, *cells, collect=("results",))["results"]
    ranks = run_on_ranks(world_size, SETUP, *cells, collect=("results",))
    for name in names:
        found = [rank["results"][name] for rank in ranks]
        assert found[0]["after"] == single[name]["after"]
        assert found[1]["after"] != single[name]["after"], "a rank's own random numbers were taken"
        for epoch, batches in enumerate(single[name]["epochs"]):
            parts = zip(*(rank["epochs"][epoch] for rank in found), strict=True)
            for batch, held in zip(batches, parts, strict=True):
                _assert_equal_shares(batch, held)


@pytest.mark.parametrize("context", ["torch.no_grad()", "torch.inference_mode()"])
def test_full_data_without_gradients(context: str) -> None:
    cell = f"""
loaders = [DataLoader(Squares(29), 8, shuffle=True), DataLoader(Squares(29), 8, num_workers=1),
           DataLoader(Stream(29), 8), DataLoader(Squares(32), batch_sampler=Bunches(32, 8))]
with {context}:
    lengths = [len(loader) for loader in loaders]
    seen = [[b.tolist() for b in loader] for loader in loaders]
"""
    single = run_single(SETUP, cell, collect=("seen", "lengths"))
    for rank in run_on_ranks(2, SETUP, cell, collect=("seen", "lengths"), batch="per-rank"):
        assert (rank["seen"], rank["lengths"]) == (single["seen"], single["lengths"])
        assert not rank["_report"].facts


def test_evaluation_on_rank_0_alone_waits_for_nobody() -> None:
    cell = """
test = DataLoader(Squares(20), 8)
total = 0
if rank == 0:
    with torch.no_grad(): total += sum(len(b) for b in DataLoader(Squares(20), 8, shuffle=True))
    total += sum(len(b) for b in test)
"""
    assert [rank["total"] for rank in run_on_ranks(2, SETUP, cell, collect=("total",))] == [40, 0]


TRAIN = """
weight = torch.zeros((), requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.01)
def train(batch):
    optimizer.zero_grad(); (weight * batch.float().mean()).backward(); optimizer.step()
"""


def test_unshuffled_loader_is_whole_until_it_trains() -> None:
    cell = """
loader = DataLoader(Squares(32), batch_size=8)
looked_at = [len(b) for b in loader]
first, second = [], []
for sizes in (first, second):
    for batch in loader:
        sizes.append(len(batch)); train(batch)
"""
    for rank in run_on_ranks(
        2, SETUP + TRAIN, cell, collect=("looked_at", "first", "second"), wrap=False
    ):
        assert rank["looked_at"] == [8, 8, 8, 8]
        assert rank["first"] == [8, 4, 4, 4]
        assert rank["second"] == [4, 4, 4, 4]
        assert rank["_report"].facts == [("loader", "batch 8 → 2 × 4, full under no_grad")]  # noqa: RUF001


def test_training_by_hand_is_training() -> None:
    cell = """
weight = torch.zeros((), requires_grad=True)
for batch in DataLoader(Squares(32), batch_size=8, shuffle=True):
    (weight * batch.float().mean()).backward()
    weight.data -= 0.01 * weight.grad
"""
    for rank in run_on_ranks(2, SETUP, cell, wrap=False):
        assert not rank["_report"].notices


def test_loop_that_reads_shares_and_trains_nothing_is_told() -> None:
    cell = """
loader = DataLoader(Squares(32), batch_size=8, shuffle=True, num_workers=workers)
next(iter(loader))
for batch in loader: train(batch)
"""
    look = "count = sum(len(batch) for batch in loader)"
    for workers in ("workers = 0", "workers = 1"):
        trained = run_on_ranks(2, SETUP + TRAIN + workers, cell, wrap=False)
        assert not any(rank["_report"].notices for rank in trained)
        looked = run_on_ranks(
            2, SETUP + TRAIN + workers, cell, look, collect=("count",), wrap=False
        )
        assert all(rank["count"] == 16 for rank in looked)
        assert all("loader-not-trained" in rank["_report"].notices for rank in looked)


@pytest.mark.parametrize("world_size", WORLDS)
def test_per_rank_batches(world_size: int) -> None:
    cell = """
cases = {
    "shuffle": DataLoader(Squares(64), batch_size=8, shuffle=True),
    "uneven": DataLoader(Squares(70), batch_size=8, shuffle=True),
    "drop_last": DataLoader(Squares(70), batch_size=8, shuffle=True, drop_last=True),
    "bunches": DataLoader(Squares(64), batch_sampler=Bunches(64, 8)),
    "stream": DataLoader(Stream(70), batch_size=8),
    "items": DataLoader(Chunks(), batch_size=None, shuffle=True),
}
lengths = {name: len(loader) for name, loader in cases.items()}
seen = {name: [b.tolist() for b in loader] for name, loader in cases.items()}
"""
    ranks = run_on_ranks(world_size, SETUP, cell, collect=("lengths", "seen"), batch="per-rank")
    for name, items in [("shuffle", 64), ("uneven", 70), ("bunches", 64), ("stream", 70)]:
        together = [x for rank in ranks for batch in rank["seen"][name] for x in batch]
        values = set(range(items)) if name == "stream" else {i * i for i in range(items)}
        assert set(together) == values
        assert len(together) - items < world_size * 8
    for rank in ranks:
        batches = {name: len(found) for name, found in rank["seen"].items()}
        assert batches == rank["lengths"]
        assert [len(batch) for batch in rank["seen"]["shuffle"]] == [8] * (8 // world_size)
        assert batches["drop_last"] == 70 // (8 * world_size)
        assert batches["items"] == -(-6 // world_size)
    sizes = [[len(batch) for batch in rank["seen"]["uneven"]] for rank in ranks]
    assert all(rank == sizes[0] for rank in sizes)


def test_not_sharded_when_made_or_iterated_without() -> None:
    cell = "loader = DataLoader(Squares(32), 8, shuffle=True); sizes = [len(b) for b in loader]"
    for rank in run_on_ranks(2, SETUP, cell, collect=("sizes",), shard=False):
        assert rank["sizes"] == [8] * 4


def test_code_that_divides_its_data_itself_is_left_alone() -> None:
    cell = """
import os
import torch.distributed as dist
from torch.utils.data import DistributedSampler
class ByRank(IterableDataset):
    def __iter__(self): return iter(range(dist.get_rank(), 16, dist.get_world_size()))
class ByVariable(Sampler):
    def __iter__(self): return iter(range(int(os.environ["RANK"]), 16, 2))
class ByField(Squares):
    def __init__(self, rank, world_size):
        super().__init__(16)
        self.rank, self.world_size = rank, world_size
loaders = [
    DataLoader(Squares(16), 4, sampler=DistributedSampler(Squares(16))),
    DataLoader(Squares(16), batch_sampler=BatchSampler(DistributedSampler(Squares(16)), 4, False)),
    DataLoader(ByRank(), 4),
    DataLoader(Squares(16), 4, sampler=ByVariable()),
    DataLoader(Subset(Squares(16), range(rank, 16, world_size)), 4, shuffle=True),
    DataLoader(list(range(rank, 16, world_size)), 4, shuffle=True),
]
sizes = [[len(b) for b in loader] for loader in loaders]
alike = [len(b) for b in DataLoader(ByField(rank, world_size), 4, shuffle=True)]
"""
    for rank in run_on_ranks(2, SETUP, cell, collect=("sizes", "alike")):
        assert rank["sizes"] == [[4, 4]] * 6
        assert rank["alike"] == [4] * 4
        assert rank["_report"].notices.keys() == {"loader-divides-itself", "loader-data-differs"}


def test_divided_data_stay_as_they_are_with_per_rank_batches() -> None:
    cell = """
loader = DataLoader(Subset(Squares(32), range(rank, 32, world_size)), 4, shuffle=True)
seen = [[b.sqrt().int().tolist() for b in loader] for _ in range(2)]
length = len(loader)
"""
    for number, rank in enumerate(
        run_on_ranks(2, SETUP, cell, collect=("seen", "length"), batch="per-rank")
    ):
        for epoch in rank["seen"]:
            assert [len(batch) for batch in epoch] == [4] * 4
            assert sorted(chain(*epoch)) == list(range(number, 32, 2))
        assert rank["length"] == 4


def test_what_cannot_be_cut_is_said_once() -> None:
    cell = """
for _ in range(2):
    for b in DataLoader(Squares(12), batch_size=5, shuffle=True): pass
    for b in DataLoader(Chunks(), batch_size=None, shuffle=True): pass
    for b in DataLoader(Stream(4), batch_size=None): pass
    for b in DataLoader(Squares(13), batch_size=4, shuffle=True): pass
"""
    for rank in run_on_ranks(2, SETUP, cell):
        notices = rank["_report"].notices
        assert notices.keys() == {
            "loader-uneven", "loader-uncut", "loader-stream-uncut", "loader-not-trained",
        }  # fmt: skip
        assert (
            "batch of 5 does not divide by 2 ranks: every rank has all" in notices["loader-uneven"]
        )
        assert "4 or 6" in notices["loader-uneven"]


def test_loader_keeps_what_the_user_gave() -> None:
    cell = """
import copy, pickle
sampler, batches = RandomSampler(range(32)), Bunches(32, 8)
a = DataLoader(Squares(32), 8, sampler=sampler, collate_fn=doubled)
b = DataLoader(Squares(32), batch_sampler=batches)
s = DataLoader(Stream(32), 8, collate_fn=doubled)
checks = []
for again in (False, True):
    checks += [a.sampler is sampler, a.batch_size == 8, type(a.batch_sampler) is BatchSampler,
               b.batch_sampler is batches, b.batch_size is None, a.collate_fn is doubled,
               s.collate_fn is doubled, type(a) is DataLoader, a.dataset.size == 32,
               vars(a).keys() == vars(copy.copy(a)).keys(), "ddp" not in repr(vars(a))]
    for loader in (a, b, s): list(loader)
sizes = [len(next(iter(copy.deepcopy(a))))]
"""
    for rank in run_on_ranks(2, SETUP, cell, collect=("checks", "sizes")):
        assert all(rank["checks"])
        assert rank["sizes"] == [4]


def test_workers_draw_differently_on_each_rank_and_as_in_one_process_on_rank_0() -> None:
    cell = """
class Noise(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        return torch.stack([torch.rand(()), *torch.tensor([random.random(), np.random.rand()])])
noise = next(iter(DataLoader(Noise(), 8, shuffle=True, num_workers=1)))
with torch.no_grad():
    full = next(iter(DataLoader(Noise(), 8, shuffle=True, num_workers=1)))
"""
    single = run_single(SETUP, cell, collect=("noise", "full"))
    ranks = run_on_ranks(2, SETUP, cell, collect=("noise", "full"))
    assert torch.equal(ranks[0]["noise"], single["noise"][:4])
    assert not (ranks[0]["noise"] == ranks[1]["noise"]).any()
    assert torch.equal(ranks[1]["full"], single["full"])


def test_spawned_workers() -> None:
    cell = """
loaders = [
    DataLoader(torch.arange(16), 8, shuffle=True, num_workers=1, multiprocessing_context=context)
    for context in ("spawn", "forkserver")
]
seen = [sorted(x for b in loader for x in b.tolist()) for loader in loaders]
"""
    ranks = run_on_ranks(2, SETUP, cell, collect=("seen",))
    for first, second in zip(ranks[0]["seen"], ranks[1]["seen"], strict=True):
        assert sorted(first + second) == list(range(16))


def test_workers_end_with_their_loader() -> None:
    cell = """
import multiprocessing, time
loader = DataLoader(Squares(32), 8, shuffle=True, num_workers=2, persistent_workers=True)
list(loader)
alive = multiprocessing.active_children()
loader = DataLoader(Squares(32), 8, shuffle=True)
for worker in alive: worker.join(20)
left = [worker.is_alive() for worker in alive]
"""
    assert run_on_ranks(2, SETUP, cell, collect=("left",))[1]["left"] == [False, False]


def test_persistent_workers_train_and_evaluate_a_stream() -> None:
    cell = """
loader = DataLoader(Stream(32), 8, num_workers=1, persistent_workers=True)
sizes = [[len(b) for b in loader] for _ in range(2)]
with torch.no_grad(): sizes.append([len(b) for b in loader])
sizes.append([len(b) for b in loader])
del loader
"""
    for rank in run_on_ranks(2, SETUP, cell, collect=("sizes",)):
        assert rank["sizes"] == [[4] * 4, [4] * 4, [8] * 4, [4] * 4]


@pytest.mark.parametrize("world_size", WORLDS)
def test_training_follows_one_process(world_size: int) -> None:
    cell = """
from torch import distributed, nn
x = torch.randn(29, 5, dtype=torch.double)
y = x.sum(1, keepdim=True).sin()
trajectory = []
for batch_size in (8, 7, 3, 1):
    data = torch.utils.data.TensorDataset(x, y)
    loader = DataLoader(data, batch_size=batch_size, shuffle=batch_size != 7)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(2):
        for xb, yb in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(xb), yb).backward()
            flat = torch.cat([p.grad.flatten() for p in model.parameters()])
            if distributed.is_initialized():
                distributed.all_reduce(flat)
                flat /= distributed.get_world_size()
            nn.utils.vector_to_parameters(flat, [p.grad for p in model.parameters()])
            optimizer.step()
            trajectory.append(nn.utils.parameters_to_vector(model.parameters()).detach())
"""
    single = run_single(SETUP, cell, collect=("trajectory",))["trajectory"]
    for rank in run_on_ranks(world_size, SETUP, cell, collect=("trajectory",), wrap=False):
        torch.testing.assert_close(rank["trajectory"], single, atol=1e-12, rtol=0)


def test_single_rank_is_left_alone() -> None:
    cell = "sizes = [len(b) for b in DataLoader(Squares(32), 8, shuffle=True)]"
    rank = run_on_ranks(1, SETUP, cell, collect=("sizes",))[0]
    assert rank["sizes"] == [8] * 4
    assert not rank["_report"].facts


def test_uninstall_leaves_the_classes_as_they_were() -> None:
    backward = torch.Tensor.backward
    before = (
        dict(vars(DataLoader)),
        dict(vars(_BaseDataLoaderIter)),
        len(_global_optimizer_post_hooks),
    )
    sharder = LoaderSharder(ListReport())
    sharder.install()
    assert dict(vars(DataLoader)) != before[0]
    data = TensorDataset(torch.arange(8))
    loader = DataLoader(data, 4, num_workers=1, persistent_workers=True)
    sharder.uninstall()
    assert dict(vars(DataLoader)) == before[0]
    assert dict(vars(_BaseDataLoaderIter)) == before[1]
    assert len(_global_optimizer_post_hooks) == before[2]
    assert [len(b) for (b,) in loader] == [4, 4]
    assert torch.Tensor.backward is backward


def test_new_group_agrees_anew() -> None:
    """A rank that was replaced knows nothing of what the others had agreed on."""
    cell = """
import gc
import ddp_magic.rank.loaders as loaders
[sharder] = [o for o in gc.get_objects() if type(o) is loaders.LoaderSharder]
loader = DataLoader(Squares(32), batch_size=8, shuffle=True)
list(loader)
kept = sharder._states[loader].data_alike
sharder.on_new_group()
forgotten = sharder._states[loader].data_alike
sizes = [len(b) for b in loader]
"""
    for rank in run_on_ranks(2, SETUP, cell, collect=("kept", "forgotten", "sizes")):
        assert (rank["kept"], rank["forgotten"], rank["sizes"]) == (True, None, [4] * 4)
