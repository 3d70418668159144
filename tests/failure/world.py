"""Ranks in a notebook that train, are made to fail, and train on."""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddp_magic.core.ranks import parse_ranks
from ddp_magic.errors import plain
from tests.notebook.conftest import CellOutput, Message, Notebook

_PROMPT_S = 45  # far more than anything here takes
_THERE_S = 30
TOLERANCE = 1e-5

# Runs in one process as it does on the ranks.
TRAINING = """
import torch, torch.nn as nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.manual_seed(0)
x, y = torch.randn(32, 4), torch.randn(32, 1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
def train():
    torch.manual_seed(1)
    for a, b in loader:
        opt.zero_grad(); nn.functional.mse_loss(model(a), b).backward(); opt.step()
def weights():
    momenta = [opt.state[p]['momentum_buffer'] for p in model.parameters()]
    return [v for t in [*model.parameters(), *momenta] for v in t.flatten().tolist()]
train()
"""
_SETUP = """%%ddp --no-plot
import ctypes, gc, json, os, psutil, resource, signal, sys, threading, time
from pathlib import Path
import torch.distributed as dist
{training}
there, spins, kept = Path({folder!r}, str(rank)), 0, ['a list', rank]
no_limit = (resource.RLIM_INFINITY,) * 2
resource.setrlimit(resource.RLIMIT_AS, no_limit)
mutex = ctypes.create_string_buffer(64)

def others_are_there():
    until_s = time.monotonic() + {deadline_s}
    while len(os.listdir(there.parent)) < world_size - 1 and time.monotonic() < until_s:
        os.sched_yield()
    return True

def more_than_the_memory_limit():
    "Leave this rank a quarter of a gibibyte, and return a number of bytes beyond."
    pages = int(Path('/proc/self/statm').read_text().split()[0])
    limit = pages * resource.getpagesize() + 2**28
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    return 2**32

class Deadly(Dataset):
    def __len__(self): return 2
    def __getitem__(self, i): os.kill(os.getpid(), signal.SIGKILL)

def state():
    process = psutil.Process()
    return dict(
        kept=kept, weights=weights(), same_objects=objects == (id(model), id(opt), id(kept)),
        children=len(process.children(recursive=True)), python_threads=threading.active_count(),
        threads=process.num_threads(), files=process.num_fds())

objects = (id(model), id(opt), id(kept))
print(json.dumps(dict(rank=rank, now=state())))
"""
_LOOK = "gc.collect(); print(json.dumps(dict(rank=rank, now=state())))"
_TRAIN = """%%ddp --no-plot
resource.setrlimit(resource.RLIMIT_AS, no_limit)
gc.collect(); found = state()
train()
print(json.dumps(dict(rank=rank, found=found, now=state())))
"""
_LINE = re.compile(r"ddp: (ranks? ([\d, -]+?)|both ranks|all \d+ ranks) (?=[a-z])(.*)")

State = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """What the notebook shows of a cell that failed."""

    output: CellOutput

    @property
    def name(self) -> str:
        """The error's class."""
        return str(self.output.error["ename"])

    @property
    def text(self) -> str:
        """The error as it is shown, with the lines of the ranks."""
        return plain("\n".join(self.output.error["traceback"]))

    @property
    def all(self) -> str:
        """All that is shown."""
        notices = "\n".join(self.output.data("text/plain"))
        return "\n".join((self.output.text(), self.output.text("stderr"), notices, self.text))

    def of(self, rank: int) -> str:
        """Return what is told of one rank, a line for each sentence."""
        return "\n".join(
            said
            for _, numbers, said in _LINE.findall(self.text)
            if not numbers or rank in parse_ranks(numbers)
        )


class Ranks:
    """Ranks in a notebook of their own.

    Attributes
    ----------
    before
        The state of each rank as it was set up.
    """

    def __init__(self, notebook: Notebook, world_size: int) -> None:
        self.world_size = world_size
        self.before: dict[int, State] = {}
        self._notebook = notebook
        self._hung_in = ""
        self._folder = ""

    def run(self, cell: str, on_output: Callable[[Message], None] | None = None) -> CellOutput:
        """Run a cell; fail at once if the prompt has not come back after an earlier one."""
        if self._hung_in:
            pytest.fail(f"the prompt never came back after:\n{self._hung_in}", pytrace=False)
        try:
            return self._notebook.run(cell, on_output, deadline_s=_PROMPT_S)
        except TimeoutError:
            self._hung_in = cell
            raise

    def run_well(self, cell: str) -> CellOutput:
        """Run a cell that must come to its end."""
        output = self.run(cell)
        assert output.status == "ok", Told(output).text
        return output

    def set_up(self) -> None:
        """Train a little, on ranks that are all there, and keep what there is then."""
        self._folder = tempfile.mkdtemp()
        cell = _SETUP.format(folder=self._folder, deadline_s=_THERE_S, training=TRAINING)
        self.before = _states(self.run_well(cell), "now")
        assert len(self.before) == self.world_size

    def restored(self) -> None:
        """Have all ranks back after a death, with what those that live have."""
        self.run_well("%ddp heal")

    def made_anew(self) -> None:
        """Have new ranks, whatever has become of the old ones."""
        self.run_well("%ddp restart")
        self.set_up()

    def fail(self, cell: str, *, press_stop: bool = False) -> Told:
        """Run a cell that must fail.

        Parameters
        ----------
        press_stop
            Whether Stop is pressed as soon as all ranks are there (see `THERE`), and once more
            when it is offered to kill one.
        """
        pressed = False

        def stop() -> None:
            nonlocal pressed
            if _wait_for(lambda: len(list(Path(self._folder).iterdir())) == self.world_size):
                pressed = True
                self._notebook.interrupt()

        def stop_again(message: Message) -> None:
            text = str(message["content"].get("data", {}).get("text/plain", ""))
            if press_stop and "Stop kills rank" in text:
                self._notebook.interrupt()

        thread = threading.Thread(target=stop)
        if press_stop:
            thread.start()
        try:
            output = self.run(cell, stop_again)
        finally:
            if press_stop:
                thread.join()
        assert output.status == "error"
        assert pressed == press_stop
        return Told(output)

    def look(self, ranks: str) -> dict[int, State]:
        """Return the state of some ranks, which need no others."""
        return _states(self.run_well(f"%%ddp --no-plot -r {ranks}\n{_LOOK}"), "now")

    def train(self) -> tuple[dict[int, State], dict[int, State]]:
        """Train all ranks on, and return the state that was found and the one that is left."""
        output = self.run_well(_TRAIN)
        return _states(output, "found"), _states(output, "now")


def _states(output: CellOutput, key: str) -> dict[int, State]:
    found = [json.loads(line) for line in re.findall(r"\{.*\}", output.text())]
    return {one["rank"]: one[key] for one in found}


def _wait_for(is_so: Callable[[], bool]) -> bool:
    """Wait until something is so, or too long; return whether it is."""
    pause = threading.Event()
    for _ in range(_THERE_S * 100):
        if is_so():
            return True
        pause.wait(0.01)
    return False
