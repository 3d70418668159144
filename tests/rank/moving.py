"""Moves the variables of rank 0 to rank 1, of ranks of the harness."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ddp_magic.rank.graphpickle import GraphPickler
from ddp_magic.rank.healing import give, take
from ddp_magic.rank.variables import own_ranks, plain, variables

_CPU = torch.device("cpu")


def move() -> dict[str, str]:
    """Let rank 1 have rank 0's variables; return, on rank 0, what was left out and why."""
    if dist.get_rank() == 1:
        take(0, _CPU)
        return {}
    values: dict[str, Any] = variables({})
    own = own_ranks({0: plain(values)}, 0)
    pickler = partial(GraphPickler, rank=0, device=_CPU)
    return dict(give(1, values, own, pickler, lambda packed: None, {}).left_out)
