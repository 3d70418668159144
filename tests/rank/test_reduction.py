"""Which losses are sums over the samples of a rank's part."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ddp_magic.rank.reduction import Cut, sums_over_samples, weighs_samples
from tests.rank.harness import run_on_ranks

PART, BATCH = 8, 16
LABELS = torch.zeros(PART, dtype=torch.long)
TARGETS = torch.rand(PART, 3)
Loss = Callable[[Tensor, Tensor], Tensor]  # of what comes of the part, and a parameter


def _found(loss: Loss) -> bool:
    weight = torch.randn(5, 3, requires_grad=True)
    return sums_over_samples(loss(torch.rand(PART, 5) @ weight, weight), Cut(PART, BATCH))


SUMS: dict[str, Loss] = {
    "sum": lambda p, w: (p - TARGETS).pow(2).sum(),
    "rows, then sum": lambda p, w: p.sum(1).sum(),
    "row means, then sum": lambda p, w: p.mean(-1).sum(),
    "batch, then mean": lambda p, w: p.sum(0).mean(),
    "mse": lambda p, w: F.mse_loss(p, TARGETS, reduction="sum"),
    "cross entropy": lambda p, w: F.cross_entropy(p, LABELS, reduction="sum"),
    "bce": lambda p, w: F.binary_cross_entropy(p.sigmoid(), TARGETS, reduction="sum"),
    "vae": lambda p, w: F.mse_loss(p, TARGETS, reduction="sum") - 0.5 * torch.sum(1 + p - p.exp()),
    "by the whole batch's size": lambda p, w: p.sum() / BATCH,
    "beside a mean": lambda p, w: p.mean() + 0.1 * p.abs().sum(),
    "among several": lambda p, w: torch.stack([p.mean(), p.sum()]).sum(),
}
MEANS: dict[str, Loss] = {
    "mean": lambda p, w: (p - TARGETS).pow(2).mean(),
    "cross entropy": lambda p, w: F.cross_entropy(p, LABELS),
    "row sums, then mean": lambda p, w: p.sum(1).mean(),
    "batch mean, then sum": lambda p, w: p.mean(0).sum(),
    "by the part's size": lambda p, w: p.sum() / len(p),
    "by a mask": lambda p, w: (p.sum(1) * 0.5).sum() / torch.full((8,), 0.5).sum(),
    "penalty": lambda p, w: p.mean() + 0.1 * w.pow(2).sum() + w.abs().sum(),
    "batchmean": lambda p, w: F.kl_div(p, TARGETS, reduction="batchmean"),
    "several": lambda p, w: torch.stack([p.mean()] * 3).sum(),
    "accumulated": lambda p, w: p.mean() / 4,
    "a leaf": lambda p, w: w[0, 0],
}


WEIGHED: dict[str, Loss] = {
    "class weights": lambda p, w: F.cross_entropy(p, LABELS, weight=torch.tensor([2.0, 1, 1])),
    "ignored": lambda p, w: F.cross_entropy(p, LABELS.clone().index_fill_(0, LABELS[:1], -100)),
    "rows by a mask": lambda p, w: p[torch.arange(PART) > 2].mean(),
    "masked_select": lambda p, w: torch.masked_select(p, TARGETS > 0.5).mean(),
    "the largest": lambda p, w: p.sum(1).topk(3).values.mean(),
    "divided by a mask's sum": lambda p, w: (p.sum(1) * 0.5).sum() / torch.full((7,), 1).sum(),
    "beside a mean": lambda p, w: p.mean() + 0.1 * p[torch.arange(PART) > 2].mean(),
}


@pytest.mark.parametrize("name", WEIGHED)
def test_weighed(name: str) -> None:
    weight = torch.randn(5, 3, requires_grad=True)
    loss = WEIGHED[name](torch.rand(PART, 5) @ weight, weight)
    assert weighs_samples(loss, Cut(PART, BATCH))


@pytest.mark.parametrize("name", sorted({*SUMS, *MEANS} - {"by a mask"}))
def test_not_weighed(name: str) -> None:
    weight = torch.randn(5, 3, requires_grad=True)
    loss = {**SUMS, **MEANS}[name](torch.rand(PART, 5) @ weight, weight)
    assert not weighs_samples(loss, Cut(PART, BATCH))


@pytest.mark.parametrize("name", SUMS)
def test_sum(name: str) -> None:
    assert _found(SUMS[name])


@pytest.mark.parametrize("name", MEANS)
def test_mean(name: str) -> None:
    assert not _found(MEANS[name])


def test_penalty_on_a_parameter_as_long_as_the_part() -> None:
    weight = torch.randn(PART, 3, requires_grad=True)
    loss = (torch.rand(PART, PART) @ weight).mean() + weight.pow(2).sum()
    assert not sums_over_samples(loss, Cut(PART, BATCH))


@pytest.mark.parametrize(("reduction", "told"), [("sum", True), ("mean", False)])
@pytest.mark.parametrize("stream", [False, True])
def test_said_once_in_a_cell(reduction: str, told: bool, stream: bool) -> None:
    cell = f"""
import torch
from torch.utils.data import DataLoader, IterableDataset
class Rows(IterableDataset):
    def __iter__(self): return iter(torch.ones(16, 3))
loader = DataLoader(Rows(), 8) if {stream} else DataLoader(torch.ones(16, 3), 8, shuffle=True)
w = torch.ones(3, requires_grad=True)
for x in loader:
    torch.nn.functional.mse_loss(x @ w, torch.ones(len(x)), reduction={reduction!r}).backward()
"""
    for rank in run_on_ranks(2, cell, wrap=False):
        notices = rank["_report"].notices
        said = [text for key, text in notices.items() if key.startswith("loader-loss-sums")]
        assert len(said) == told
        assert not told or "is 0.5 of that in one process" in said[0]
