"""The baseline: a training script as one writes it for ``torchrun``, measured when asked to."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Client

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from workloads import WORKLOADS


def measure(name: str, warmup: int, steps: int) -> list[float]:
    """Train a model from the start.

    Returns
    -------
    list of float
        Seconds by the clock and of this process's CPU time for ``steps`` steps after ``warmup``.
    """
    workload = WORKLOADS[name]
    torch.manual_seed(0)
    model = DistributedDataParallel(workload.model())
    dataset = workload.dataset()
    sampler: DistributedSampler[object] = DistributedSampler(dataset)
    loader = DataLoader(dataset, workload.batch_size // dist.get_world_size(), sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_function = nn.CrossEntropyLoss()

    step = epoch = 0
    while step < warmup + steps:
        sampler.set_epoch(epoch)
        epoch += 1
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
    return [time.perf_counter() - begin_s, time.process_time() - begin_cpu_s]


def main() -> None:
    """Answer the driver's requests until it sends None."""
    dist.init_process_group("gloo")
    with Client(os.environ["BENCHMARK_SOCKET"]) as driver:
        while (request := driver.recv()) is not None:
            driver.send(measure(*request))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
