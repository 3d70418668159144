"""Code that speaks DDP, FSDP or torch.distributed itself, as for torchrun.

In one process it finds a group of one rank.
"""

from __future__ import annotations

from tests.rank.patterns.common import NET

SETUP = (
    """
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
if not dist.is_initialized():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
def held():
    "How many models the session keeps in step."
    return 0 if world_size == 1 else len(list(attacher()._registry))
def loss_of(model): return F.mse_loss(model(part(x)), part(y))
def fit(model, opt, steps=4):
    for _ in range(steps):
        opt.zero_grad(); loss_of(model).backward(); opt.step(); record(*full(model))
def full(model):
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
"""
    + NET
)

_CELLS = {
    "own DDP": """
net = Net(); model = DDP(net); fit(model, torch.optim.Adam(model.parameters(), 0.01))
see(held=held(), kind=type(model).__name__, keys=list(model.state_dict()), same=model.module is net)
""",
    "a DistributedSampler with set_epoch": """
model = DDP(Net()); opt = torch.optim.SGD(model.parameters(), 0.1); data = TensorDataset(x, y)
sampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=8 // world_size, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in loader:
        opt.zero_grad(); F.mse_loss(model(a), b).backward(); opt.step(); record(model)
see(held=held(), n=len(loader), mine=len(sampler) * world_size)
""",
    "a loader that is not divided, under DDP": """
model = DDP(Net()); opt = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
for _ in range(2):
    for a, b in loader:
        opt.zero_grad(); F.mse_loss(model(a), b).backward(); opt.step(); record(model)
see(held=held(), n=len(loader))
""",
    "no_sync": """
model = DDP(Net()); opt = torch.optim.SGD(model.parameters(), 0.1)
for i in range(8):
    with model.no_sync() if i % 4 != 3 else contextlib.nullcontext():
        (loss_of(model) / 4).backward()
    if i % 4 == 3: opt.step(); opt.zero_grad(); record(model)
see(held=held())
""",
    "a hook that averages": """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
model = DDP(Net()); model.register_comm_hook(dist.group.WORLD, allreduce_hook)
fit(model, torch.optim.SGD(model.parameters(), 0.1)); see(held=held())
""",
    "a hook that compresses": """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
model = DDP(Net()); model.register_comm_hook(None, fp16_compress_hook)
fit(model, torch.optim.SGD(model.parameters(), 0.1)); see(held=held())
""",
    "a static graph": """
model = DDP(Net(), static_graph=True); fit(model, torch.optim.SGD(model.parameters(), 0.1))
see(held=held())
""",
    "gradients as views of buckets": """
model = DDP(Net(), gradient_as_bucket_view=True, bucket_cap_mb=1)
opt = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    opt.zero_grad(set_to_none=False); loss_of(model).backward(); opt.step(); record(model)
see(held=held())
""",
    "unused parameters": """
net = Net(); net.spare = nn.Linear(3, 3); model = DDP(net, find_unused_parameters=True)
fit(model, torch.optim.SGD(model.parameters(), 0.1)); see(held=held())
""",
    "a part in DDP": """
net = Net(); net.body = DDP(net.body); fit(net, torch.optim.SGD(net.parameters(), 0.1))
see(keys=list(net.state_dict()))
""",
    "a model in DDP beside one that is not": """
a, b = DDP(Net()), Net(); opt = torch.optim.SGD([*a.parameters(), *b.parameters()], 0.1)
for _ in range(4):
    opt.zero_grad(); F.mse_loss(a(part(x)) + b(part(x)), part(y)).backward(); opt.step()
    record(a, b)
""",
    "two models in DDP, by turns": """
G, D = DDP(nn.Linear(2, 4)), DDP(nn.Linear(4, 1), broadcast_buffers=False); z = torch.randn(16, 2)
og, od = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
for _ in range(4):
    od.zero_grad(); D(G(part(z)).detach()).mean().backward(); od.step()
    D.requires_grad_(False); og.zero_grad(); D(G(part(z))).mean().neg().backward(); og.step()
    D.requires_grad_(True); record(G, D)
see(held=held())
""",
    "the raw model's optimizer came first": """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01); model = DDP(net); fit(model, opt)
see(held=held(), same=opt.param_groups[0]["params"][0] is model.module.body.weight)
""",
    "the raw model was trained first": """
net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01); fit(net, opt); model = DDP(net)
fit(model, opt)
see(held=held())
""",
    "DDP given up again, with a new optimizer": """
net = Net(); model = DDP(net); fit(model, torch.optim.Adam(model.parameters(), 0.01))
del model; gc.collect(); fit(net, torch.optim.Adam(net.parameters(), 0.01))
""",
    "compiled": """
model = torch.compile(DDP(Net()), backend="eager")
fit(model, torch.optim.Adam(model.parameters(), 0.01))
""",
    "checkpointed": """
from torch.utils.checkpoint import checkpoint
class Frugal(Net):
    def forward(self, x): return self.head(checkpoint(self.encode, x, use_reentrant=False))
model = DDP(Frugal()); fit(model, torch.optim.Adam(model.parameters(), 0.01)); see(held=held())
""",
    "saved by rank 0, loaded by all": """
model = DDP(Net()); opt = torch.optim.Adam(model.parameters(), 0.01); fit(model, opt)
boxes = [copy.deepcopy(model.module.state_dict()) if dist.get_rank() == 0 else None]
dist.broadcast_object_list(boxes); net = Net(); net.load_state_dict(boxes[0]); dist.barrier()
model = DDP(net); fit(model, torch.optim.Adam(model.parameters(), 0.01)); see(held=held())
""",
    "joined, with uneven inputs": """
from torch.distributed.algorithms.join import Join
model = DDP(Net()); opt = torch.optim.SGD(model.parameters(), 0.1)
def fit_unevenly():
    for _ in range(2 + dist.get_rank()): opt.zero_grad(); loss_of(model).backward(); opt.step()
with Join([model]): fit_unevenly()
record(model)
with model.join(): fit_unevenly()
record(model); see(held=held())
""",
    "a zero redundancy optimizer": """
from torch.distributed.optim import ZeroRedundancyOptimizer
model = DDP(Net()); opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.05)
fit(model, opt); opt.consolidate_state_dict(); see(held=held())
""",
    "a zero redundancy optimizer without DDP": """
from torch.distributed.optim import ZeroRedundancyOptimizer
net = Net(); fit(net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.05))
""",
    "models averaged now and then": """
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
model = DDP(Net()); opt = torch.optim.SGD(model.parameters(), 0.1)
averager = PeriodicModelAverager(period=2, warmup_steps=1)
for _ in range(4):
    opt.zero_grad(); loss_of(model).backward(); opt.step()
    averager.average_parameters(model.parameters()); record(model)
see(held=held())
""",
    "fully_shard": """
from torch.distributed.fsdp import fully_shard
net = Net(); fully_shard(net.body); fully_shard(net)
fit(net, torch.optim.Adam(net.parameters(), 0.05))
see(held=held(), keys=list(net.state_dict()))
""",
    "fully_shard on a mesh, clipped": """
from torch.distributed.fsdp import fully_shard
net = fully_shard(Net(), mesh=init_device_mesh("cpu", (world_size,)))
opt = torch.optim.SGD(net.parameters(), 0.1); norms = []
for _ in range(4):
    opt.zero_grad(); loss_of(net).backward(); norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    opt.step(); record(*full(net)); norms.append(norm.full_tensor().item())
see(held=held(), norms=norms)
""",
    "FSDP of old": """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
model = FSDP(Net(), device_id=torch.device("cpu")); opt = torch.optim.Adam(model.parameters(), 0.05)
for _ in range(4):
    opt.zero_grad(); loss_of(model).backward(); opt.step()
    with FSDP.summon_full_params(model): record(*[p.clone() for p in model.parameters()])
see(held=held())
""",
    "tensors parallel on a mesh": """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
plan = {"body": ColwiseParallel(), "head": RowwiseParallel()}
net = parallelize_module(Net(), init_device_mesh("cpu", (world_size,)), plan)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4): opt.zero_grad(); F.mse_loss(net(x), y).backward(); opt.step(); record(*full(net))
""",
    "averaged by hand": """
def average(model):
    size = float(dist.get_world_size())
    for p in model.parameters():
        dist.all_reduce(p.grad.data, op=dist.ReduceOp.SUM); p.grad.data /= size
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4): opt.zero_grad(); loss_of(net).backward(); average(net); opt.step(); record(net)
""",
    "averaged by hand, over a sampler's part": """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1); data = TensorDataset(x, y)
for a, b in DataLoader(data, 8 // world_size, sampler=DistributedSampler(data)):
    opt.zero_grad(); F.mse_loss(net(a), b).backward()
    for p in net.parameters(): dist.all_reduce(p.grad); p.grad /= world_size
    opt.step(); record(net)
""",
    "summed by hand, divided in the loss": """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    opt.zero_grad(); (loss_of(net) / world_size).backward()
    for p in net.parameters(): dist.all_reduce(p.grad)
    opt.step(); record(net)
""",
    "weights broadcast, then averaged by hand": """
torch.manual_seed(dist.get_rank()); net = Net()
for p in net.parameters(): dist.broadcast(p.data, 0)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    opt.zero_grad(); loss_of(net).backward(); opt.step()
    for p in net.parameters(): dist.all_reduce(p.data); p.data /= world_size
    record(net)
""",
    "groups of the user's own": """
alone = [dist.new_group([r]) for r in range(world_size)][dist.get_rank()]
everyone = dist.new_group(list(range(world_size))); mesh = init_device_mesh("cpu", (world_size,))
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for group in (everyone, mesh.get_group()):
    opt.zero_grad(); loss = loss_of(net); loss.backward(); opt.step(); record(net)
    total = loss.detach().clone(); dist.all_reduce(total, group=group)
    dist.all_reduce(total, group=alone)
    see(loss=total.item() / world_size)
model = DDP(Net(), process_group=everyone); fit(model, torch.optim.SGD(model.parameters(), 0.1))
""",
    "a collective under way during backward": """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    opt.zero_grad(); loss = loss_of(net); mean = loss.detach() / world_size
    work = dist.all_reduce(mean, async_op=True); loss.backward(); work.wait(); opt.step()
    record(net)
    see(loss=mean.item())
""",
    "a batch gathered with its gradient": """
from torch.distributed.nn.functional import all_gather
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    h = torch.cat([*all_gather(net.encode(part(x)))]); opt.zero_grad()
    F.mse_loss(net.head(h), y).backward()
    opt.step(); record(net)
""",
    "metrics by all_reduce": """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
for _ in range(2):
    sums = torch.zeros(2)
    for a, b in loader:
        loss = F.mse_loss(net(a), b); opt.zero_grad(); loss.backward(); opt.step(); record(net)
        sums += torch.tensor([loss.item() * len(a), len(a)])
    dist.all_reduce(sums); see(loss=(sums[0] / sums[1]).item(), n=int(sums[1]))
""",
}

USER_DDP = {name: SETUP + cell for name, cell in _CELLS.items()}
