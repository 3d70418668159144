"""Unchanged single-device cells, on real ranks: trained as in one process, and nothing touched."""

from __future__ import annotations

import pytest

from tests.rank.harness import RankFailed, run_on_ranks, run_single
from tests.rank.parity import (
    PRELUDE,
    TOLERANCE,
    check_parity,
    difference,
    facts,
    notices,
    train,
)
from tests.rank.patterns import NET, PATTERNS, SGD_LOOP


@pytest.mark.parametrize("pattern", ["own class", "gan", "unused every other step, with momentum"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_trains_as_one_process_on_any_number_of_ranks(pattern: str, world_size: int) -> None:
    rows = 12 if world_size == 3 else 16  # equal parts, as a loader gives them
    check_parity(f"x, y = x[:{rows}], y[:{rows}]", PATTERNS[pattern], world_size=world_size)


def test_a_model_made_in_one_cell_is_trained_in_another() -> None:
    cells = (NET + "net = Net()", "opt = torch.optim.Adam(net.parameters(), 0.01)", SGD_LOOP)
    found = check_parity(*cells, SGD_LOOP)
    assert facts(found) == [("model", "Net, 49 parameters")]
    assert notices(found) == []


def test_a_model_stays_what_it_is() -> None:
    found = train(
        2,
        NET
        + """
net = Net(); before = set(vars(net)); keys = list(net.state_dict())
opt = torch.optim.SGD(net.parameters(), 0.1)
"""
        + SGD_LOOP
        + """
net.note = 7
facts = {
    "type": type(net) is Net,
    "attributes": set(vars(net)) == before | {"note"},
    "keys": list(net.state_dict()) == keys,
    "forward": net.forward.__func__ is Net.forward,
    "hooks": not net._forward_hooks and not net._forward_pre_hooks and not net._backward_hooks,
    "parameters": all(type(p) is nn.Parameter and not vars(p) for p in net.parameters()),
}
""",
        collect=("facts",),
    )
    assert all(all(one["facts"].values()) for one in found), found[0]["facts"]


def test_no_random_numbers_are_drawn() -> None:
    cell = """
net = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 1)); net.spare = nn.Linear(1, 1)
opt = torch.optim.SGD(net.parameters(), 0.1); ix = torch.arange(8) % 5
for _ in range(3):
    opt.zero_grad(); net(part(ix)).mean().backward(); opt.step(); record(net, torch.rand(3))
"""
    check_parity(cell)


def test_copies_and_files_are_plain() -> None:
    found = train(
        2,
        NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)" + SGD_LOOP,
        """
ema = copy.deepcopy(net)
blob = io.BytesIO(); torch.save(net, blob); blob.seek(0)
texts = [pickle.dumps(net), blob.getvalue(), pickle.dumps(opt), pickle.dumps(net.state_dict())]
loaded = torch.load(blob, weights_only=False)
(F.mse_loss(ema(part(x)), part(y)) + F.mse_loss(loaded(part(x)), part(y))).backward()  # trained on
facts = {
    "no trace": not any(b"ddp_magic" in text or b"istributed" in text for text in texts),
    "no hooks": not any(p._post_accumulate_grad_hooks for p in copy.deepcopy(ema).parameters()),
    "same values": all(torch.equal(a, b) for a, b in zip(net.parameters(), loaded.parameters())),
    "averaged": all(same_on_all_ranks(p.grad) for n in (ema, loaded) for p in n.parameters()),
}
""",
        collect=("facts",),
    )
    assert all(all(one["facts"].values()) for one in found), found[0]["facts"]


def test_a_model_that_is_made_anew_leaves_nothing_behind() -> None:
    cell = NET + "net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)" + SGD_LOOP
    found = train(
        2,
        "old = []; gc.disable()",
        *(3 * [cell + "old += [weakref.ref(net), weakref.ref(net.head.weight), weakref.ref(opt)]"]),
        """
net = opt = None
left = [ref() is not None for ref in old]; left_here = len(list(attacher()._registry))
""",
        """
net = Net(); net(x).sum().backward(); old = weakref.ref(net.head.weight); net = None
left.append(old() is not None)
tensor = torch.ones(3, requires_grad=True); tensor.sum().backward()
old = weakref.ref(tensor); tensor = None
left.append(old() is not None)
""",
        collect=("left", "left_here"),
    )
    assert not any(found[0]["left"]), found[0]["left"]
    assert found[0]["left_here"] == 0


def test_one_of_two_models_averaged_together_can_go() -> None:
    cell = """
a, b = Net(), Net(); opt = torch.optim.SGD([*a.parameters(), *b.parameters()], 0.1)
for _ in range(3):
    opt.zero_grad(); F.mse_loss(a(part(x)) + b(part(x)), part(y)).backward(); opt.step()
old = weakref.ref(a.head.weight); a = None; net = b; opt = torch.optim.SGD(net.parameters(), 0.1)
"""
    found = train(2, NET, cell, SGD_LOOP, "gone = old() is None", collect=("gone",))
    assert found[0]["gone"]


def test_what_a_function_gives_up_goes_while_it_still_runs() -> None:
    cell = """
left = []
def trials():
    old = None
    for _ in range(3):
        net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)
        for _ in range(2):
            opt.zero_grad(); F.mse_loss(net(part(x)), part(y)).backward(); opt.step(); record(net)
        left.append(any(ref() is not None for ref in old) if old else False)
        old = weakref.ref(net), weakref.ref(opt), weakref.ref(net.head.weight)
trials()
"""
    found = train(2, NET + "gc.disable()", cell, collect=("left",))
    assert found[0]["left"] == [False] * 3


def test_parameters_are_made_equal_before_the_first_step() -> None:
    cell = """
torch.manual_seed(100 * rank)
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
net[1].running_mean += rank
torch.manual_seed(0)
opt = torch.optim.SGD(net.parameters(), 0.1)
equal = [same_on_all_ranks(t) for t in net.state_dict().values()]
"""
    found = train(2, cell, SGD_LOOP, collect=("equal",))
    assert all(found[1]["equal"])
    assert notices(found)[0] == (
        "net (Sequential): differed between ranks; all have rank 0's values now"
    )


def test_weights_drawn_anew_after_the_optimizer_are_made_equal() -> None:
    cell = NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)"
    draw = """
torch.manual_seed(rank)
net.apply(lambda m: nn.init.normal_(m.weight) if hasattr(m, "weight") else None)
"""
    train(2, cell, draw, SGD_LOOP)


def test_buffers_are_rank_0s_after_each_backward() -> None:
    found = train(
        2,
        """
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
net.register_buffer("positions", torch.arange(3).expand(2, -1))
net.register_buffer("nothing", None)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    a, b = net(part(x)), net(part(-x))
    opt.zero_grad(); (F.mse_loss(a, part(y)) + b.mean()).backward(); opt.step(); record(net)
equal = [same_on_all_ranks(b) for b in net.buffers()]; count = int(net[1].num_batches_tracked)
""",
        collect=("equal", "count"),
    )
    assert all(found[1]["equal"])
    assert found[1]["count"] == 6


@pytest.mark.parametrize(
    "loss",
    [
        "net(part(x)).pow(2).mean() if rank == 0 else net.encode(part(x)).pow(2).mean()",
        "net(part(x)).pow(2).mean() if (rank + i) % 2 else net.body(part(x)).pow(2).mean()",
        "net(part(x)).pow(2).mean() if rank else other(part(x)).pow(2).mean()",
        "other(part(x)).mean() + (net.head.bias * 0).sum() if rank else other(part(x)).mean()",
    ],
)
def test_what_only_some_ranks_use_counts_as_zero_on_the_others(loss: str) -> None:
    ours = f"""
net, other = Net(), Net()
opt = torch.optim.AdamW([*net.parameters(), *other.parameters()], 0.01, weight_decay=0.5)
for i in range(4):
    opt.zero_grad(); loss = {loss}; loss.backward(); opt.step(); record(net, other)
"""
    world = "world_size, parts = 2, [t.clone() for t in x.chunk(2)]\n"
    single = f"""
net, other = Net(), Net()
opt = torch.optim.AdamW([*net.parameters(), *other.parameters()], 0.01, weight_decay=0.5)
def loss_of(rank, i):
    part = lambda t: parts[rank]
    return {loss}
for i in range(4):
    opt.zero_grad(); ((loss_of(0, i) + loss_of(1, i)) / 2).backward(); opt.step()
    record(net, other)
"""
    wanted = run_single(PRELUDE, NET, world + single, collect=("trace",))
    found = train(2, NET, ours)
    assert difference(wanted["trace"], found[0]["trace"]) <= TOLERANCE


def test_a_model_on_one_rank_only_stays_there() -> None:
    found = train(
        2,
        NET
        + """
if rank == 0:
    probe = nn.Linear(4, 1); probe_opt = torch.optim.SGD(probe.parameters(), 0.1)
    for _ in range(3): probe(x).mean().backward(); probe_opt.step()
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
"""
        + SGD_LOOP
        + """
if rank == 0:
    for _ in range(3): probe(x).mean().backward(); probe_opt.step()
"""
        + SGD_LOOP,
    )
    assert notices(found) == [
        "probe (Linear): is not trained on every rank, so its gradients are not averaged",
        "Net: differed between ranks; all have rank 0's values now",  # the probe drew numbers
    ]


def test_a_forward_on_one_rank_only_is_harmless() -> None:
    train(
        2,
        NET
        + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
if rank == 0: print(net(x).shape)
dist.barrier()
"""
        + SGD_LOOP
        + "if rank == 1: net(x); net.eval()(x)\ndist.barrier()"
        + SGD_LOOP,
    )


def test_a_model_of_another_shape_on_some_rank_is_refused_on_all() -> None:
    found = train(
        2,
        """
from ddp_magic.errors import ParityError
emb = nn.Embedding(10 + rank, 2)
try:
    torch.optim.SGD(emb.parameters(), 0.1)
    message = ""
except ParityError as error:
    message = str(error)
total = torch.ones(1); dist.all_reduce(total)
""",
        collect=("message", "total"),
    )
    for one in found:
        assert "emb (Embedding) is not the same model on all ranks" in one["message"]
        assert "rank 0 has 'weight (10, 2)" in one["message"]
        assert "rank 1 has 'weight (11, 2)" in one["message"]
        assert one["total"].item() == 2


def test_inputs_that_need_gradients_are_not_averaged() -> None:
    found = train(
        2,
        NET
        + """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1); equal = []
for _ in range(3):
    delta = torch.zeros_like(part(x), requires_grad=True)
    for _ in range(2):
        F.mse_loss(net(part(x) + delta), part(y)).backward()
        equal.append(same_on_all_ranks(delta.grad))
        delta.data += 0.1 * delta.grad.sign(); delta.grad = None
    opt.zero_grad(); F.mse_loss(net(part(x) + delta.detach()), part(y)).backward(); opt.step()
    record(net)
""",
        collect=("equal",),
    )
    assert found[0]["equal"] == [False] * 6
    assert notices(found) == []


def test_tensors_that_are_optimized_but_differ_are_taken_for_data() -> None:
    found = train(
        2,
        """
images = part(x).clone().requires_grad_(); opt = torch.optim.SGD([images], 0.1)
for _ in range(3):
    opt.zero_grad(); images.pow(2).mean().backward(); opt.step()
""",
    )
    assert notices(found) == [
        "`images` is not the same on all ranks, so it is taken for data, its gradient not averaged "
        "(an nn.Parameter would be)"
    ]


def test_bare_parameters_are_named() -> None:
    found = check_parity(PATTERNS["bare parameters"])
    assert notices(found) == ["`w, b` belongs to no module; its gradient is averaged over ranks"]


def test_what_goes_unused_is_named_once() -> None:
    found = check_parity(PATTERNS["always unused, with weight decay"])
    assert notices(found) == [
        "Net: spare.weight, spare.bias took no part in this loss, so got no gradient"
    ]


@pytest.mark.parametrize("model", ["DDP(raw)", "raw"])
def test_a_ddp_of_the_users_own_is_left_alone(model: str) -> None:
    cell = f"""
from torch.nn.parallel import DistributedDataParallel as DDP
raw = Net(); opt = torch.optim.SGD(raw.parameters(), 0.1); raw(part(x)).sum().backward()
opt.zero_grad()
ddp = DDP(raw); model = ddp
opt = torch.optim.SGD(({model}).parameters(), 0.1)
for i in range(6):
    opt.zero_grad()
    with model.no_sync() if i % 2 == 0 else contextlib.nullcontext():
        (model(part(x)) - part(y)).pow(2).mean().backward()
    if i % 2: opt.step(); record(raw)
held = [one for one in attacher()._registry]
plain = not any(p._post_accumulate_grad_hooks for p in raw.parameters())
"""
    found = train(2, NET, cell, collect=("held", "plain"))
    assert found[0]["held"] == []
    assert found[0]["plain"]


def test_fsdp_is_left_alone() -> None:
    found = run_on_ranks(
        2,
        "import torch, torch.nn as nn, gc",
        """
from torch.distributed.fsdp import fully_shard
net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)); fully_shard(net)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    opt.zero_grad(); net(torch.randn(2, 4)).sum().backward(); opt.step()
from ddp_magic.rank.attach import Attacher
held = len(list(next(o for o in gc.get_objects() if type(o) is Attacher)._registry))
""",
        collect=("held",),
    )
    assert found[0]["held"] == 0


def test_inactive_nothing_is_done_and_later_all_is_equal_again() -> None:
    found = train(
        2,
        NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)" + SGD_LOOP,
        """
if rank == 0:  # a cell on a subset of ranks: no collective may be issued
    attacher().active = False
    for _ in range(3):
        opt.zero_grad(); net(x).sum().backward(); opt.step()
    other = Net(); optimizer = torch.optim.SGD(other.parameters(), 0.1)
    other(x).sum().backward(); optimizer.step()
kept = len(attacher()._registry._attachments), sum(len(a.fired) for a in attacher()._registry)
attacher().active = True
""",
        "attacher().resync()",
        SGD_LOOP,
        collect=("kept",),
    )
    assert found[0]["kept"] == (1, 0)
    assert notices(found) == ["Net: differed between ranks; all have rank 0's values now"]


def test_after_rank_0_trained_alone_all_have_its_optimizer_state() -> None:
    """Rank 0's model and moments are the ones that one process would have had."""
    setup = NET + "net = Net(); opt = torch.optim.Adam(net.parameters(), 0.01)"
    alone = """
if rank == 0:
    for _ in range(3): opt.zero_grad(); net(x).pow(2).sum().backward(); opt.step()
"""
    check_parity(
        setup + SGD_LOOP,
        "if world_size > 1 and rank == 0: attacher().active = False\n" + alone,
        "if world_size > 1: attacher().active = True; attacher().resync()",
        SGD_LOOP,
    )


def test_not_wrapped() -> None:
    cell = NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)" + SGD_LOOP
    found = run_on_ranks(
        2,
        *_with_prelude(cell),
        "equal = same_on_all_ranks(net.head.weight)",
        collect=("equal",),
        wrap=False,
    )
    assert not found[0]["equal"]
    assert facts(found) == []


def test_uninstalled_nothing_is_left() -> None:
    found = train(
        2,
        NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)" + SGD_LOOP,
        """
attacher().uninstall()
net(part(x)).sum().backward()
import torch.optim.optimizer as module, torch.nn.modules.module as modules
ddp = nn.parallel.DistributedDataParallel
patched = (torch.autograd.backward, torch.optim.Optimizer.add_param_group, ddp.__init__)
left = [
    any(p._post_accumulate_grad_hooks for p in net.parameters()),
    bool(module._global_optimizer_pre_hooks),
    bool(modules._global_parameter_registration_hooks or modules._global_module_registration_hooks),
    any("ddp_magic" in f.__code__.co_filename for f in patched),
    list(attacher()._registry) != [],
]
""",
        collect=("left",),
    )
    assert found[0]["left"] == [False] * 5


def test_a_new_process_group_is_taken_up() -> None:
    found = train(
        2,
        NET
        + """
from torch.nn.parallel import DistributedDataParallel as DDP
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1); ddp = DDP(Net())
ddp_opt = torch.optim.SGD(ddp.parameters(), 0.1)
w = nn.Parameter(torch.ones(4, 1)); w_opt = torch.optim.SGD([w], 0.1)
def train():
    for model, optimizer in ((net, opt), (ddp, ddp_opt)):
        optimizer.zero_grad(); F.mse_loss(model(part(x)), part(y)).backward(); optimizer.step()
        record(model)
    w_opt.zero_grad(); F.mse_loss(part(x) @ w, part(y)).backward(); w_opt.step(); record(w)
for _ in range(3): train()
""",
        """
store = dist.distributed_c10d._get_default_store()
dist.destroy_process_group()
second = dist.PrefixStore("second", store)
dist.init_process_group("gloo", store=second, rank=rank, world_size=world_size)
attacher().on_new_group()
for _ in range(3): train()
""",
    )
    assert len(found[0]["trace"]) == 18


def test_a_backward_that_raised_leaves_the_next_one_whole() -> None:
    train(
        2,
        NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)" + SGD_LOOP,
        """
def fail(gradient): raise ValueError("on purpose")
hook = net.body.weight.register_hook(fail)
try:
    net(part(x)).sum().backward()
except ValueError as error:
    raised = str(error)
hook.remove()
"""
        + SGD_LOOP,
        collect=("raised",),
    )


def test_a_graph_of_averaged_gradients_is_refused() -> None:
    cell = NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)" + SGD_LOOP
    message = r"backward\(create_graph=True\) on net \(Net\)"
    with pytest.raises(RankFailed, match=message):
        train(2, cell, "net(part(x)).mean().backward(create_graph=True)")


def test_wrap_attaches_with_options() -> None:
    found = train(
        2,
        NET
        + """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
options = {"gradient_as_bucket_view": True, "static_graph": True}
same = attacher().wrap(net, **options, comm_hook=(None, fp16_compress_hook)) is net
"""
        + SGD_LOOP.replace("zero_grad()", "zero_grad(set_to_none=False)")
        + """
ddp = next(iter(attacher()._registry))._reducer._ddp
hooked = [hook.__name__ for hook, _ in ddp._comm_hooks], ddp.gradient_as_bucket_view
""",
        collect=("same", "hooked"),
    )
    assert found[0]["same"]
    assert found[0]["hooked"] == (["fp16_compress_hook"], True)
    assert notices(found) == ["ddp.wrap: static_graph not needed: what it allows works without it"]


def test_wrapping_what_cannot_be_trained_says_so() -> None:
    with pytest.raises(
        RankFailed, match=r"ddp.wrap: ReLU has no parameter that requires a gradient"
    ):
        train(1, "attacher().wrap(nn.ReLU())")


def test_checksums_tell_what_trained_and_whether_it_drifted() -> None:
    found = train(
        2,
        NET + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)" + SGD_LOOP,
        "sums = [attacher().trained_checksums(), attacher().trained_checksums()]",
        SGD_LOOP + "net.head.bias.data += rank; sums.append(attacher().trained_checksums())",
        collect=("sums",),
    )
    (first, second, third), (other, _, drifted) = found[0]["sums"], found[1]["sums"]
    assert first == other
    assert list(first) == ["net (Net)"]
    assert second == {}
    assert third != drifted


def _with_prelude(*cells: str) -> tuple[str, ...]:
    return PRELUDE, *cells


def test_a_model_on_the_cpu_beside_gpus_is_told_so() -> None:
    pretend = "import ddp_magic.rank.attachment as a; a.session_has_gpus = lambda: True\n"
    found = train(
        2, NET + pretend + "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)\n" + SGD_LOOP
    )
    assert notices(found) == ["Net: trains on the CPU beside an idle GPU; .to(device) moves it"]


def test_data_grown_in_place_is_torchs_own_error() -> None:
    cell = """
net = nn.Embedding(5, 3); opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(4):
    if i == 2:
        net.weight.grad = None; net.weight.data = torch.cat([net.weight.data, torch.ones(2, 3)])
    opt.zero_grad(); net(torch.arange(4)).pow(2).mean().backward(); opt.step()
"""
    with pytest.raises(RankFailed, match="returned an invalid gradient"):
        train(2, cell)
