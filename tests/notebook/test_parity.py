"""The quickstart's training cell, unchanged, trains on ranks what it trains in one process."""

from __future__ import annotations

import pytest

from benchmarks.parity import (
    STEPS,
    Trajectory,
    compare,
    train_in_one_process,
    train_on_ranks,
    training_cells,
)

_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def one_process() -> Trajectory:
    return train_in_one_process(training_cells())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("world_size", [2, 4])
def test_losses_are_those_of_one_process(one_process: Trajectory, world_size: int) -> None:
    parity = compare(one_process, train_on_ranks(world_size, training_cells()))
    print(f"\n{parity}")
    assert len(parity.loss_differences) > STEPS
    assert parity.loss_differences[:STEPS].max() < _TOLERANCE
    assert parity.ranks_equal


def test_the_training_cell_knows_of_no_ranks() -> None:
    source = "\n".join(training_cells())
    assert not [word for word in ("rank", "world_size", "ddp", "dist") if word in source]
