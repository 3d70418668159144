"""Which data sets and samplers know of ranks, and which data differ between ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from ddp_magic.rank.datasets import describe, divides_by_rank


class Plain(Dataset[int]):
    """Mentions rank 0 in words only, as do many."""

    def __init__(self, size: int = 8) -> None:
        self.size = size
        self.rank_of_matrix = 3

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class AsksTorch(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        def own() -> range:
            return range(dist.get_rank(), 8, dist.get_world_size())

        yield from own()


class AsksEnvironment(Plain):
    @classmethod
    def files(cls) -> list[int]:
        return list(range(int(os.environ["RANK"]), 8, 2))


class UsesNames(Plain):
    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self.files = range(rank, 8, world_size)


class Field:
    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


DISTRIBUTED: DistributedSampler[int] = DistributedSampler(Plain(), num_replicas=2, rank=0)


@pytest.mark.parametrize(
    "thing",
    [
        AsksTorch(), AsksEnvironment(), UsesNames(0, 2), DISTRIBUTED,
        Subset(AsksEnvironment(), [1]),
        ConcatDataset([Plain(), UsesNames(0, 2)]), BatchSampler(DISTRIBUTED, 4, False),
        Field(num_replicas=2), Field(rank=0, world_size=2), Field(_distributed=(0, 2)),
        Field(num_processes=2, process_index=0), DataLoader(Plain(), sampler=DISTRIBUTED),
    ],
    ids=lambda thing: type(thing).__name__,
)  # fmt: skip
def test_knows_of_ranks(thing: Any) -> None:
    assert divides_by_rank(thing)


@pytest.mark.parametrize(
    "thing",
    [
        Plain(), Subset(Plain(), [1]), ConcatDataset([Plain(), Plain()]), [1, 2], range(3), {1: 2},
        TensorDataset(torch.ones(3)), torch.ones(3), RandomSampler(Plain()),
        WeightedRandomSampler([0.5, 0.5], 2), BatchSampler(RandomSampler(Plain()), 4, False),
        Field(rank=3), Field(num_processes=4), Field(_distributed=None, rank=0, world_size=2),
        DataLoader(Plain(), shuffle=True),
    ],
    ids=lambda thing: type(thing).__name__,
)  # fmt: skip
def test_knows_nothing_of_ranks(thing: Any) -> None:
    assert not divides_by_rank(thing)


VALUES = torch.arange(24.0).reshape(8, 3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Plain(8), Plain(7)),
        (Subset(Plain(), [0, 2, 4]), Subset(Plain(), [1, 3, 5])),
        (Subset(Plain(), torch.tensor([0, 2])), Subset(Plain(), torch.tensor([1, 3]))),  # type: ignore[arg-type]
        (Subset(Plain(), np.arange(2)), Subset(Plain(), np.arange(1, 3))),  # type: ignore[arg-type]
        (Subset(Plain(9), [0]), Subset(Plain(8), [0])),
        (ConcatDataset([Plain(8), Plain(2)]), ConcatDataset([Plain(8), Plain(3)])),
        (TensorDataset(VALUES[::2]), TensorDataset(VALUES[1::2])),
        (VALUES, VALUES + 1), (VALUES, VALUES[:0]), (VALUES.numpy(), VALUES.numpy() + 1),
        (list(range(0, 8, 2)), list(range(1, 8, 2))), (range(0, 8, 2), range(1, 8, 2)),
        ([(VALUES[0], 1)], [(VALUES[1], 1)]), (["a"], ["b"]),
    ],
)  # fmt: skip
def test_different_data_are_told_apart(one: Any, other: Any) -> None:
    assert repr(describe(one)) != repr(describe(other))
    assert repr(describe(one)) == repr(describe(one))


@pytest.mark.parametrize(
    "data",
    [
        torch.ones(()), torch.empty(0, 3), torch.ones(4, 0), torch.ones(3).to_sparse(),
        np.array([{}, None]), torch.ones(200, 1000), torch.ones(3).bfloat16(), [object()],
        [Plain()], {"a": 1}, object(), [[torch.ones(3)], np.ones(2)], (), torch.ones(3) > 0,
    ],
    ids=lambda data: re.sub(" at 0x[0-9a-f]+", "", repr(data)),  # alike in all processes
)  # fmt: skip
def test_description_is_small_and_the_same_in_every_process(data: Any) -> None:
    text = repr(describe(data))
    assert len(text) < 20_000
    assert " at 0x" not in text
