"""Imported by the process that ranks are forked from: all that their programs need."""

from __future__ import annotations

import gc

import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor  # noqa: F401

import tests.rank.harness  # noqa: F401

gc.collect()
gc.freeze()  # a rank that looks through all this would copy its pages
