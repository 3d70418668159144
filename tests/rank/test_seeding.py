"""One seed for all, and workers that differ."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ddp_magic.errors import UsageError
from ddp_magic.rank.seeding import seed_everything, worker_base_seed
from tests.rank.harness import run_on_ranks


@pytest.fixture(autouse=True)
def _random_numbers_stay_as_they_were() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 1, 2**64 - 1])
def test_all_generators_are_seeded(seed: int) -> None:
    drawn = []
    for _ in range(2):
        seed_everything(seed)
        drawn.append((random.random(), np.random.rand(), torch.rand(()).item()))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "1", None, True])
def test_what_is_no_seed_is_refused(seed: Any) -> None:
    with pytest.raises(UsageError, match=r"--seed .* is not a whole number"):
        seed_everything(seed)


def test_no_two_workers_share_a_seed_and_rank_0_has_those_of_one_process() -> None:
    seeds = [
        worker_base_seed(100, rank, num_workers=3) + worker
        for rank in range(4)
        for worker in range(3)
    ]
    assert len(set(seeds)) == 12
    assert seeds[:3] == [100, 101, 102]


def test_unseeded_code_agrees_on_all_ranks() -> None:
    cell = """
import random
import numpy as np
import torch
from ddp_magic.rank.seeding import seed_everything
seed_everything(3)
split = torch.utils.data.random_split(range(10), [7, 3])[0].indices
weight = torch.nn.Linear(3, 2).weight.detach()
drawn = random.random(), np.random.rand()
"""
    first, second = run_on_ranks(2, cell, collect=("split", "weight", "drawn"), seed=9)
    assert first["split"] == second["split"]
    assert torch.equal(first["weight"], second["weight"])
    assert first["drawn"] == second["drawn"]
