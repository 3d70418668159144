"""How far the quickstart's training under ``%%ddp`` is from the same cells in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import nbformat
import numpy as np
from numpy.typing import NDArray

from ddp_magic import Session
from ddp_magic.testing import RecordingView

STEPS = 50
_NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "quickstart.ipynb"
_CELLS = ("data", "training")  # by their ids in the notebook
_MAGIC = "%%ddp\n"
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # all on the CPU, all alike

_RECORD = """
from torch.nn import functional

losses = []
plain_cross_entropy = functional.cross_entropy

def recording_cross_entropy(*args, **kwargs):
    loss = plain_cross_entropy(*args, **kwargs)
    losses.append(loss.item())
    return loss

functional.cross_entropy = recording_cross_entropy
"""
_COLLECT = """
parameters = nn.utils.parameters_to_vector(model.parameters()).tolist()
"""
_PRINT = """
import json
print(json.dumps([losses, parameters]))
"""


@dataclass(frozen=True)
class Trajectory:
    """What one process saw: the loss at each step, and the parameters after the last."""

    losses: NDArray[np.float64]
    parameters: NDArray[np.float64]


@dataclass(frozen=True)
class Parity:
    """Training on ranks, compared with one process.

    Attributes
    ----------
    loss_differences
        For each step: between the mean of the ranks' losses and the one process's loss.
    parameter_difference
        The largest of any parameter after the last step, between rank 0 and the one process.
    ranks_equal
        Whether the parameters are equal on all ranks, to the last bit.
    """

    world_size: int
    loss_differences: NDArray[np.float64]
    parameter_difference: float
    ranks_equal: bool

    def __str__(self) -> str:
        steps = len(self.loss_differences)
        return (
            f"{self.world_size} ranks against one process: losses differ by at most"
            f" {self.loss_differences[:STEPS].max():.1e} in {STEPS} steps and"
            f" {self.loss_differences.max():.1e} in {steps}, parameters by at most"
            f" {self.parameter_difference:.1e} then; ranks are"
            f" {'bit-identical' if self.ranks_equal else 'NOT EQUAL'}"
        )


def training_cells() -> list[str]:
    """Return the quickstart's cells up to its training, without their first line, ``%%ddp``."""
    sources = {cell.id: cell.source for cell in nbformat.read(_NOTEBOOK, as_version=4).cells}
    assert all(sources[name].startswith(_MAGIC) for name in _CELLS)
    return [sources[name].removeprefix(_MAGIC) for name in _CELLS]


def train_in_one_process(cells: list[str]) -> Trajectory:
    """Run the cells as a plain Python script."""
    script = "\n".join([_RECORD, *cells, _COLLECT, _PRINT])
    command = [sys.executable, "-c", script]
    with patch.dict(os.environ, _ENVIRONMENT):
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Trajectory(*map(np.array, json.loads(ended.stdout.splitlines()[-1])))


def train_on_ranks(world_size: int, cells: list[str]) -> list[Trajectory]:
    """Run the cells under ``%%ddp``; return what each rank saw."""
    with patch.dict(os.environ, _ENVIRONMENT), Session(world_size) as session:
        for cell in (_RECORD, *cells, _COLLECT):
            session.run(cell, view=RecordingView())
        seen = zip(session.pull("losses"), session.pull("parameters"), strict=True)
        return [Trajectory(np.array(losses), np.array(values)) for losses, values in seen]


def compare(one_process: Trajectory, ranks: list[Trajectory]) -> Parity:
    """Compare training on ranks with one process."""
    mean_losses = np.mean([rank.losses for rank in ranks], axis=0)
    first = ranks[0].parameters
    return Parity(
        world_size=len(ranks),
        loss_differences=np.abs(mean_losses - one_process.losses),
        parameter_difference=float(np.abs(first - one_process.parameters).max()),
        ranks_equal=all(np.array_equal(first, rank.parameters) for rank in ranks),
    )


def main() -> None:
    """Print one line for 2 ranks and one for 4."""
    cells = training_cells()
    one_process = train_in_one_process(cells)
    for world_size in (2, 4):
        print(compare(one_process, train_on_ranks(world_size, cells)), flush=True)


if __name__ == "__main__":
    main()
