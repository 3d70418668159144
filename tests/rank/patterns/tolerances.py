"""Patterns whose arithmetic is coarser than usual, or not that of one process at all."""

from __future__ import annotations

import math

_ALIKE_ONLY = [
    "batch norm",
    "batch norm, two forwards",
    "codebook moved by its own batch",
    "dropout",
    "dropout, then a model drawn at random",
    "ema with buffers, evaluated",
    "loader: batch norm, and a last batch of two",
    "loader: batches mixed",
    "loader: noise drawn for each batch",
    "loader: rows moved at random",
    "swa with update_bn",
]

TOLERANCES = {
    "all bfloat16": 2e-2,
    "all half": 2e-3,
    "autocast to bfloat16": 2e-2,
    "half with master weights": 2e-2,
    **dict.fromkeys(_ALIKE_ONLY, math.inf),
}
