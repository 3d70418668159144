"""A rank dies, and comes back with the variables of one that lives."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from ddp_magic import CellError, CellTimeout, DdpMagicError, Session, StartError, StateError
from ddp_magic.core.lifecycle import State
from ddp_magic.errors import Interrupted, plain
from ddp_magic.kernel.stock import StockCluster
from ddp_magic.kernel.world import World
from ddp_magic.testing import RecordingView

TRAINING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 1)
    def forward(self, x):
        return self.head(self.body(x))

net = Net()
optimizer = torch.optim.{optimizer}
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
bias = nn.Parameter(torch.zeros(1))
by_hand = torch.optim.SGD([bias], lr=0.1)
data = TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
step = 0

def train(epochs):
    global step
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            by_hand.zero_grad()
            loss = nn.functional.mse_loss(net(x) + bias, y)
            loss.backward()
            optimizer.step()
            by_hand.step()
            step += 1
        schedule.step()
    return loss.item()

batches = iter(loader)
"""
SUMS = """
import zlib
def crc(tensors):
    return [zlib.crc32(t.detach().contiguous().numpy().tobytes()) for t in tensors]
sums = crc([*net.parameters(), bias]) + [str(schedule.get_last_lr()), step]
states = crc(v for s in optimizer.state.values() for v in s.values() if v is not None)
state = sums + states
"""
OPTIMIZERS = ("Adam(net.parameters(), lr=0.01)", "SGD(net.parameters(), lr=0.01, momentum=0.9)")


@pytest.fixture
def cold() -> Iterator[Session]:
    """Return a session of two ranks that has not started."""
    session = Session(nproc=2, seed=0)
    yield session
    session.stop()


def run(session: Session, code: str, **options: Any) -> RecordingView:
    view = RecordingView()
    session.run(code, view=view, **options)
    return view


def heal(session: Session) -> str:
    """Heal; return the line that is shown."""
    view = RecordingView()
    session.heal(view)
    return view.notices[-1]


def await_true(condition: Callable[[], bool], deadline_s: float = 20) -> None:
    until_s = time.monotonic() + deadline_s
    while not condition() and time.monotonic() < until_s:
        threading.Event().wait(0.01)
    assert condition()


def kill(session: Session, *ranks: int) -> None:
    """Kill ranks, and wait until the session knows."""
    for rank in ranks:
        os.kill(session.status().ranks[rank].pid, signal.SIGKILL)
    await_true(lambda: set(ranks) <= session._losses.dead.keys())


@pytest.mark.parametrize(("victim", "optimizer"), [*enumerate(OPTIMIZERS)], ids=["0", "1"])
def test_training_goes_on_as_if_nobody_had_died(cold: Session, victim: int, optimizer: str) -> None:
    run(cold, TRAINING.replace("{optimizer}", optimizer))
    run(cold, f"train(2)\n{SUMS}")
    before = cold.pull("state")
    assert before[0] == before[1]
    kill(cold, victim)
    source = 1 - victim
    line = heal(cold)
    assert line.startswith(f"ddp: rank {victim} is back with rank {source}'s variables (")
    assert "of them 1 model and 2 optimizers) in " in line
    assert line.endswith("; not moved: batches (an iterator of a DataLoader)")
    assert cold._life.state is State.READY
    assert [rank.state for rank in cold.status().ranks] == ["ready", "ready"]
    run(cold, SUMS)
    assert cold.pull("state") == before
    after = run(cold, f"train(2)\n{SUMS}")
    first, second = cold.pull("sums")
    assert first == second != before[0][: len(first)]
    assert first[-1] == before[0][len(first) - 1] * 2  # steps
    run(cold, "train(1)")
    assert not after.stderr
    assert not [one for one in after.notices if "differ" in one]


def test_it_trains_what_it_would_have_trained(cold: Session) -> None:
    run(cold, TRAINING.replace("{optimizer}", OPTIMIZERS[0]))
    run(cold, "train(1)")
    run(cold, f"torch.manual_seed(1)\ntrain(2)\n{SUMS}\nexpected = sums")
    expected = cold.pull("expected")[0]
    cold.restart()
    run(cold, TRAINING.replace("{optimizer}", OPTIMIZERS[0]))
    run(cold, "train(1)")
    kill(cold, 1)
    heal(cold)
    run(cold, f"torch.manual_seed(1)\ntrain(2)\n{SUMS}")
    assert cold.pull("sums") == [expected, expected]


def test_death_within_training_and_ranks_that_parted(cold: Session) -> None:
    cold.start(nproc=3)
    run(cold, TRAINING.replace("{optimizer}", OPTIMIZERS[0]))
    with pytest.raises(CellError, match=r"rank 0 was killed") as caught:
        run(
            cold,
            "import os, signal\n"
            "train(1)\nif rank == 0: os.kill(os.getpid(), signal.SIGKILL)\ntrain(1)",
        )
    assert "`%ddp heal` brings it back with rank 1's variables" in caught.value.fix
    assert "`%ddp restart` starts afresh" in caught.value.fix
    run(cold, "with torch.no_grad(): net.head.bias += 1\nlr = 7", ranks=(2,))
    run(cold, "lr = 8\nlocal_rank = rank", ranks=(1,))
    run(cold, "local_rank = rank", ranks=(2,))
    line = heal(cold)
    assert line.startswith("ddp: rank 0 is back with rank 1's variables")
    assert "differed between ranks: lr" in line
    assert cold.pull("lr") == [8, 8, 7]
    assert cold.pull("local_rank") == [0, 1, 2]
    run(cold, f"train(1)\n{SUMS}")
    first, *others = cold.pull("sums")
    assert others == [first, first]


def test_two_of_three_die(cold: Session) -> None:
    cold.start(nproc=3)
    run(cold, "x = [1]\ny = x\nRANK = rank")
    kill(cold, 0, 2)
    assert heal(cold).startswith("ddp: ranks 0, 2 are back with rank 1's variables (3) in ")
    run(cold, "same = x is y, rank, RANK, ddp.sum(1)")
    assert cold.pull("same") == [(True, 0, 0, 3), (True, 1, 1, 3), (True, 2, 2, 3)]


def test_a_ddp_of_the_users_goes_on(cold: Session) -> None:
    cold.start()
    run(
        cold,
        "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
        "mine = DDP(torch.nn.Sequential(*(torch.nn.Linear(600, 600) for _ in range(4))))\n"
        "optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)\n"
        "def train():\n    optimizer.zero_grad()\n    mine(torch.randn(4, 600)).mean().backward()\n"
        "    optimizer.step()\ntrain(); train()",
    )
    kill(cold, 0)
    heal(cold)
    shown = run(cold, "torch.manual_seed(rank)\ntrain(); train()")
    run(cold, "total = sum(p.double().abs().sum().item() for p in mine.parameters())")
    first, second = cold.pull("total")
    assert first == second
    assert shown.notices == []


def test_process_is_as_the_others(cold: Session, tmp_path: Any) -> None:
    cold.start()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "part.py").write_text("x = 1")
    run(cold, f"import sys\nsys.path.append({str(tmp_path)!r})\nimport package.part")
    run(
        cold,
        f"import os, sys, random, torch, numpy\nos.chdir({str(tmp_path)!r})\n"
        "os.environ['MINE'] = 'yes'\nos.environ.pop('LANG', None)\nsys.path.append('/mine')\n"
        "torch.set_default_dtype(torch.float64)\nrandom.seed(5); numpy.random.seed(5)\n"
        "def where():\n    return undefined",
    )
    kill(cold, 1)
    heal(cold)
    run(
        cold,
        "seen = (os.getcwd(), os.environ.get('MINE'), 'LANG' in os.environ, sys.path[-1],"
        " torch.get_default_dtype(), random.random(), numpy.random.rand(), torch.rand(1).item())\n"
        "own = os.environ['RANK'], os.environ['LOCAL_RANK'], rank",
    )
    first, second = cold.pull("seen")
    assert first == second
    assert first[1:5] == ("yes", False, "/mine", "torch.float64")
    assert cold.pull("own") == [("0", "0", 0), ("1", "1", 1)]
    run(cold, "assert package.part.x == 1")
    with pytest.raises(CellError) as caught:
        run(cold, "where()", ranks=(1,))
    (failure,) = caught.value.story.failures.values()
    assert "return undefined" in plain("\n".join(failure.traceback))


def test_nobody_is_dead(cold: Session) -> None:
    with pytest.raises(StateError, match="No ranks have been started"):
        cold.heal()
    cold.start()
    assert heal(cold).startswith("ddp: no rank is dead: 2 ranks on CPU")


def test_all_are_dead(cold: Session) -> None:
    cold.start()
    kill(cold, 0, 1)
    with pytest.raises(StateError, match="no rank left") as caught:
        cold.heal()
    assert "%ddp restart" in caught.value.fix
    assert cold._life.state is State.DEGRADED
    cold.restart()


def test_the_controller_is_lost(cold: Session) -> None:
    cold.start()
    (controller,) = [
        one for one in psutil.Process().children(recursive=True) if one.name() == "ddp-controller"
    ]
    controller.kill()
    await_true(lambda: bool(cold._losses.lost))
    with pytest.raises(StateError, match="%ddp restart"):
        cold.heal()


_STUBBORN = """
import time
print('on')
until = time.monotonic() + 60
while time.monotonic() < until:
    try:
        time.sleep(0.01)
    except KeyboardInterrupt:
        print('no')
"""


def test_a_survivor_is_busy(cold: Session) -> None:
    cold.start()
    view = RecordingView()
    handle = cold.run(_STUBBORN, view=view, ranks=(0,), background=True)
    assert handle is not None
    assert view.await_stdout("on")
    kill(cold, 1)
    with pytest.raises(StateError, match="A cell runs in the background on rank 0"):
        cold.heal()


def test_a_survivor_does_not_stop(cold: Session) -> None:
    cold.start()
    with pytest.raises(CellTimeout):
        run(cold, _STUBBORN, ranks=(0,), timeout_s=0.1)
    kill(cold, 1)
    with pytest.raises(StateError, match="Still busy with the cell that was stopped: rank 0"):
        cold.heal()


def test_what_cannot_fork_says_so() -> None:
    with pytest.raises(StateError, match="this system cannot fork") as caught:
        StockCluster.replace(None, (1,), {}, print)  # type: ignore[arg-type]
    assert "%ddp restart" in caught.value.fix


def children(session: Session) -> set[int]:
    parent = psutil.Process(session.status().ranks[0].pid).parent()
    assert parent is not None
    return {one.pid for one in parent.children() if one.status() != psutil.STATUS_ZOMBIE}


def check_failed_heal(session: Session, before: set[int]) -> None:
    """See that all is as it was, and that a heal without trouble works."""
    assert session._life.state is State.DEGRADED
    await_true(lambda: children(session) <= before)
    assert session.pull("x", ranks=0) == 0
    run(session, "x += 10", ranks=(0,))
    assert session.status().ranks[1].state.startswith("was killed")
    heal(session)
    assert session.pull("x") == [10, 10]
    run(session, "total = ddp.sum(1)")
    assert session.pull("total") == [2, 2]


@pytest.mark.parametrize("when", ["joining", "copying"])
def test_the_new_rank_dies_as_well(
    cold: Session, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    run(cold, "import torch\nx = rank\nlarge = torch.zeros(20_000_000)")
    kill(cold, 1)
    before = children(cold)
    with monkeypatch.context() as patch:
        gather = World._call_each

        def troubled(world: World, calls: Any, *args: Any) -> Any:
            joining = "regroup" in calls[0][0]
            if joining is (when == "joining"):
                world.signal(1, signal.SIGKILL)
            return gather(world, calls, *args)

        patch.setattr(World, "_call_each", troubled)
        with pytest.raises(StartError, match="Rank 1 was killed by SIGKILL"):
            cold.heal()
    check_failed_heal(cold, before)


@pytest.mark.parametrize("when", ["joining", "copying"])
def test_stop_within_a_heal(cold: Session, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    run(cold, "x = rank")
    kill(cold, 1)
    before = children(cold)
    with monkeypatch.context() as patch:
        gather = World._call_each

        def troubled(world: World, calls: Any, *args: Any) -> Any:
            joining = "regroup" in calls[0][0]
            if joining is (when == "joining"):
                del calls[1]  # so that the other waits for it
                signal.raise_signal(signal.SIGINT)
            return gather(world, calls, *args)

        patch.setattr(World, "_call_each", troubled)
        with pytest.raises(Interrupted, match="no rank was replaced"):
            cold.heal()
    check_failed_heal(cold, before)


@pytest.mark.parametrize("when", ["joining", "copying"])
def test_a_survivor_waits_in_vain(
    cold: Session, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    run(cold, "x = rank")
    kill(cold, 1)
    before = children(cold)
    with monkeypatch.context() as patch:
        gather = World._call_each

        def troubled(world: World, calls: Any, pending: Any, timeout_s: Any) -> Any:
            if ("regroup" in calls[0][0]) is (when == "joining"):
                calls = {0: calls[0]}  # the other is not asked
                return gather(world, calls, pending, 1.0)
            return gather(world, calls, pending, timeout_s)

        patch.setattr(World, "_call_each", troubled)
        began_s = time.monotonic()
        with pytest.raises(DdpMagicError, match="did not join each other"):
            cold.heal()
        assert time.monotonic() - began_s < 5
    check_failed_heal(cold, before)


def test_a_session_is_stopped_within_a_heal(cold: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    run(cold, "x = rank")
    kill(cold, 1)
    gather = World._call_each

    def troubled(world: World, *args: Any) -> Any:
        cold.stop()
        return gather(world, *args)

    monkeypatch.setattr(World, "_call_each", troubled)
    with pytest.raises(DdpMagicError):
        cold.heal()
    assert cold._life.state is State.STOPPED
    assert not cold.started
