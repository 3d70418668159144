"""What a cell defines reaches processes that are spawned."""

from __future__ import annotations

import pytest

from tests.rank.harness import run_single

SETUP = """
import torch
from torch.utils.data import DataLoader, Dataset
from ddp_magic.rank.mainpickle import PickledMain
part = PickledMain(); part.install()
factor = 3
class Item:
    def __init__(self, value): self.value = value
class Items(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return Item(i * factor)
def values(batch): return [item.value for item in batch]
def keep(batch): return batch
"""


@pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])
def test_workers_know_what_the_cell_defined(context: str) -> None:
    cell = f"""
def batches(collate):
    return list(DataLoader(Items(), 2, num_workers=1, collate_fn=collate,
                           multiprocessing_context={context!r}))
found = batches(values), batches(lambda batch: values(batch)[::-1])
kept = [type(item) is Item for batch in batches(keep) for item in batch]
"""
    found = run_single(SETUP, cell, collect=("found", "kept"))
    assert found["found"] == ([[0, 3], [6, 9]], [[3, 0], [9, 6]])
    assert found["kept"] == 4 * [True]


def test_uninstalled_the_pickler_is_as_it_was() -> None:
    cell = """
from multiprocessing.reduction import ForkingPickler
before = "reducer_override" in vars(ForkingPickler)
part.uninstall(); after = "reducer_override" in vars(ForkingPickler)
"""
    found = run_single(SETUP, cell, collect=("before", "after"))
    assert (found["before"], found["after"]) == (True, False)
