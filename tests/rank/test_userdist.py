"""Code written for torchrun, in a session that has its process group already."""

from __future__ import annotations

import pytest

from tests.rank.harness import RankFailed, run_on_ranks
from tests.rank.parity import PRELUDE, notices, train

# The harness makes the group and the Attacher; what it does not install is installed here.
SETUP = """
from ddp_magic.rank.userdist import UserDistributed
userdist = UserDistributed(attacher()._report); userdist.install()
"""


def test_initializing_the_live_group_keeps_it() -> None:
    cell = """
import os
os.environ["MASTER_PORT"] = "12355"
before = dist.group.WORLD
dist.init_process_group("gloo", rank=dist.get_rank(), world_size=dist.get_world_size())
dist.init_process_group(); torch.distributed.distributed_c10d.init_process_group("gloo")
same = dist.group.WORLD is before
"""
    found = train(2, SETUP, cell, cell, collect=("same",))
    assert all(one["same"] for one in found)
    assert notices(found) == []


def test_a_backend_that_is_not_here_is_answered_with_a_line() -> None:
    cell = 'dist.init_process_group(backend="nccl", init_method="env://")'
    found = train(2, SETUP, cell, cell)
    assert notices(found) == ['init_process_group("nccl"): the session keeps its own group, gloo']


def test_another_world_size_is_refused() -> None:
    message = "init_process_group asks for world_size=3, but this session has 2 ranks"
    with pytest.raises(RankFailed, match=message):
        train(2, SETUP, 'dist.init_process_group("gloo", rank=rank, world_size=3)')


def test_destroying_the_group_leaves_it() -> None:
    cell = """
sums = []
for i in range(3):
    dist.destroy_process_group(); dist.init_process_group("gloo")
    t = torch.ones(1); dist.all_reduce(t); sums.append(t.item())
dist.destroy_process_group(dist.group.WORLD)
sub = dist.new_group([0, 1]); dist.all_reduce(t, group=sub); dist.destroy_process_group(sub)
"""
    found = train(2, SETUP, cell, "dist.all_reduce(t)", collect=("sums",))
    assert found[0]["sums"] == [2.0, 2.0, 2.0]


def test_the_session_itself_can_end_and_make_the_group() -> None:
    cell = """
store = dist.distributed_c10d._get_default_store()
with userdist.aside():
    dist.destroy_process_group(); gone = not dist.is_initialized()
    second = dist.PrefixStore("second", store)
    dist.init_process_group("gloo", store=second, rank=rank, world_size=world_size)
dist.destroy_process_group(); kept = dist.is_initialized()
"""
    found = train(2, SETUP, cell, collect=("gone", "kept"))
    assert all(one["gone"] and one["kept"] for one in found)


def test_a_script_written_for_gpus_trains_on_cpu_ranks() -> None:
    cell = """
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

def train(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    model = nn.Linear(4, 1)
    ddp_model = DDP(model, device_ids=[rank], output_device=rank)
    dataset = TensorDataset(x, y)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    loader = DataLoader(dataset, sampler=sampler, batch_size=4)
    optimizer = torch.optim.SGD(ddp_model.parameters(), 0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.mse_loss(ddp_model(inputs), targets).backward()
            optimizer.step(); record(model)
    dist.destroy_process_group()

train(rank, world_size)
held = len(list(attacher()._registry))
"""
    found = train(2, SETUP, cell, collect=("held",))
    assert len(found[1]["trace"]) == 4
    assert found[1]["held"] == 0
    assert notices([found[1]]) == [
        'init_process_group("nccl"): the session keeps its own group, gloo',
        "DDP(device_ids=[1]): left out, as the model is on the CPU",
        "DDP(output_device=1): left out, as the model is on the CPU",
    ]


def test_synchronised_batch_norm_runs_on_the_cpu() -> None:
    cell = """
net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(2):
    opt.zero_grad(); net(part(x)).pow(3).mean().backward(); opt.step(); record(net)
kind = type(net[1]).__name__
"""
    found = train(2, SETUP, cell, collect=("kind",))
    assert found[0]["kind"] == "SyncBatchNorm"
    (said,) = notices(found)
    assert said.startswith("SyncBatchNorm synchronises on GPUs alone: on the CPU each rank has")


def test_a_checkpoint_of_a_ddp_loads_into_the_plain_model() -> None:
    cell = """
net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
saved = nn.parallel.DistributedDataParallel(copy.deepcopy(net)).state_dict()
before = list(saved), dict(saved._metadata)
for p in net.parameters(): p.data.zero_()
net.load_state_dict(saved)
alike = all(torch.equal(a, saved[f"module.{k}"]) for k, a in net.state_dict().items())
untouched = before == (list(saved), dict(saved._metadata))

class Holds(nn.Module):
    def __init__(self): super().__init__(); self.module = nn.Linear(2, 1)
holds = Holds(); holds.load_state_dict(Holds().state_dict())
try:
    net.load_state_dict({"module.nothing": torch.ones(1)}); said = ""
except RuntimeError as error:
    said = str(error)
"""
    found = train(2, SETUP, cell, collect=("alike", "untouched", "said"))
    assert found[0]["alike"]
    assert found[0]["untouched"]
    assert 'Unexpected key(s) in state_dict: "nothing"' in found[0]["said"]
    assert notices(found) == [
        "load_state_dict: the keys begin with `module.`, as DDP's do; taken without"
    ]


def test_another_rank_is_refused() -> None:
    with pytest.raises(RankFailed, match=r"init_process_group asks for rank=\d on rank \d"):
        run_on_ranks(
            2, PRELUDE, SETUP, "dist.init_process_group('gloo', rank=1 - rank, world_size=2)"
        )


def test_uninstalled_torch_has_its_own_functions() -> None:
    cell = """
userdist.uninstall()
names = [f.__module__ for f in (dist.init_process_group, dist.destroy_process_group)]
changed = (nn.parallel.DistributedDataParallel.__init__, nn.DataParallel.__init__,
           nn.SyncBatchNorm.forward, nn.Module.load_state_dict)
files = [f.__code__.co_filename for f in changed]
left = [file for file in files if "userdist" in file]
try:
    dist.init_process_group("gloo")
except ValueError as error:
    message = str(error)
"""
    found = train(1, SETUP, cell, collect=("left", "message"))
    assert found[0]["left"] == []
    assert "twice" in found[0]["message"]
