"""One starting seed for all ranks, and loader workers that differ between ranks."""

from __future__ import annotations

import random
import sys

import torch

from ddp_magic.errors import UsageError

_NUMPY_SEEDS = 2**32
_TORCH_SEEDS = 2**64


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's process-wide generators (the GPU's too).

    All ranks are given one seed, so that an unseeded initialisation or ``random_split`` is the
    same on each.

    Parameters
    ----------
    seed
        From 0 to 2**64 - 1. NumPy, which takes 32 bits, gets the lower ones.

    Raises
    ------
    UsageError
        If the seed is not such a number.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < _TORCH_SEEDS:
        raise UsageError(
            f"--seed {seed!r} is not a whole number from 0 to 2**64 - 1.", fix="Use --seed 0, say."
        )
    random.seed(seed)
    torch.manual_seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % _NUMPY_SEEDS)


def worker_base_seed(base_seed: int, rank: int, num_workers: int) -> int:
    """Return the base seed of a rank's loader workers, given the one that all ranks drew.

    Worker ``i`` is seeded with the base seed plus ``i``, so no two workers of any rank share a
    seed, and rank 0's have those of a single process.
    """
    return base_seed + rank * num_workers
