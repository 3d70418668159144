"""Training speed under ``%%ddp``, the live curve on, against ``torchrun`` and ``--no-plot``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from types import TracebackType

from compare import Comparison, Metric, alternate, core_count, print_table
from notebook import Notebook

_RANKS = 2
_ROUNDS = 6
_RUNS = {  # steps before measuring, and measured
    "tiny": (50, 2000),
    "small": (50, 1000),
    "middling": (5, 40),
}
_SCRIPT = Path(__file__).with_name("torchrun_rank.py")
_END_TIMEOUT_S = 30

# What torchrun_rank.py does, as it is written for one device.
_CELL = """%%ddp {options}
import json, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from workloads import WORKLOADS

workload, warmup, steps = WORKLOADS[{name!r}], {warmup}, {steps}
model = workload.model()
loader = DataLoader(workload.dataset(), workload.batch_size, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss_function = nn.CrossEntropyLoss()

step = 0
while step < warmup + steps:
    for inputs, targets in loader:
        if step == warmup:
            dist.barrier()
            begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        loss = loss_function(model(inputs), targets)
        loss.backward()
        optimizer.step()
        step += 1
        if step == warmup + steps:
            break
dist.barrier()
if rank == 0:
    print(json.dumps([time.perf_counter() - begin_s, time.process_time() - begin_cpu_s]))
"""


class Torchrun:
    """Ranks that torchrun started, which wait for what to measure."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        address = f"{self._folder.name}/socket"
        self._listener = Listener(address, family="AF_UNIX")
        # As many threads as %%ddp gives a rank, and the same network.
        environment = {
            "OMP_NUM_THREADS": str(max(1, core_count() // _RANKS)),
            "GLOO_SOCKET_IFNAME": "lo",
            "BENCHMARK_SOCKET": address,
        }
        command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={_RANKS}"]
        self._process = subprocess.Popen(
            [sys.executable, *command, str(_SCRIPT)], env=os.environ | environment
        )
        self._ranks: list[Connection] = []

    def __enter__(self) -> Torchrun:
        self._ranks = [self._listener.accept() for _ in range(_RANKS)]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for rank in self._ranks:
            rank.send(None)
        self._process.wait(_END_TIMEOUT_S)
        self._listener.close()
        self._folder.cleanup()

    def train(self, name: str) -> list[float]:
        """Train a model; return the measures of the first rank."""
        for rank in self._ranks:
            rank.send((name, *_RUNS[name]))
        first, *_ = [rank.recv() for rank in self._ranks]
        return _measures(name, *first)


def main() -> None:
    """Measure and print."""
    with Torchrun() as torchrun, Notebook() as notebook:
        notebook.run(f"%load_ext ddp_magic\n%ddp start -n {_RANKS}")
        comparisons = [one for name in _RUNS for one in _compare(notebook, torchrun, name)]
        captures = [one for name in _RUNS for one in _compare_capture(notebook, name)]
    print_table(f"Training on {_RANKS} ranks, gloo", "torchrun", comparisons)
    print_table("With the losses captured and the curve drawn", "--no-plot", captures)


def _compare(notebook: Notebook, torchrun: Torchrun, name: str) -> list[Comparison]:
    ours, baseline = partial(_train, notebook, name), partial(torchrun.train, name)
    return alternate(_metrics(name), ours, baseline, rounds=_ROUNDS)


def _compare_capture(notebook: Notebook, name: str) -> list[Comparison]:
    ours, baseline = partial(_train, notebook, name), partial(_train, notebook, name, "--no-plot")
    return alternate(_metrics(name), ours, baseline, rounds=_ROUNDS)


def _metrics(name: str) -> list[Metric]:
    return [
        Metric(f"{name} model", "steps/s", "≥ 0.98"),
        Metric("  CPU time of rank 0", "ms/step"),
    ]


def _train(notebook: Notebook, name: str, options: str = "") -> list[float]:
    warmup, steps = _RUNS[name]
    cell = _CELL.format(options=options, name=name, warmup=warmup, steps=steps)
    took_s, cpu_s = notebook.value(cell)
    if not (notebook.widgets or options):
        raise RuntimeError("no live curve was shown")
    return _measures(name, took_s, cpu_s)


def _measures(name: str, took_s: float, cpu_s: float) -> list[float]:
    _, steps = _RUNS[name]
    return [steps / took_s, 1000 * cpu_s / steps]


if __name__ == "__main__":
    main()
