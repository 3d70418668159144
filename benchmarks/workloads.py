"""What is trained: models and data, made where torch is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset, TensorDataset


@dataclass(frozen=True)
class Workload:
    """A model, and data to classify with it in batches of ``batch_size`` over all ranks."""

    model: Callable[[], nn.Module]
    dataset: Callable[[], Dataset[tuple[torch.Tensor, ...]]]
    batch_size: int


class Encoder(nn.Module):
    """A transformer that classifies sequences; about 3 million parameters."""

    def __init__(self, width: int = 256, layers: int = 4, classes: int = 10) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        """Return logits of shape ``[batch, classes]``, given ``[batch, length, width]``."""
        return self.head(self.layers(sequences).mean(dim=1))


def digits() -> TensorDataset:
    """Return 1,797 handwritten digits of 8 by 8 pixels, with their labels."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).div(16).view(-1, 1, 8, 8)
    return TensorDataset(pixels, torch.tensor(labels))


def tiny_network() -> nn.Module:
    """Return a perceptron of 3 thousand parameters for `digits`."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def small_network() -> nn.Module:
    """Return a convolutional network of 20 thousand parameters for `digits`."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def sequences(count: int = 512, length: int = 16, width: int = 256) -> TensorDataset:
    """Return random sequences with random labels."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(count, length, width, generator=generator)
    return TensorDataset(values, torch.randint(10, (count,), generator=generator))


WORKLOADS = {
    "tiny": Workload(tiny_network, digits, batch_size=32),
    "small": Workload(small_network, digits, batch_size=64),
    "middling": Workload(Encoder, sequences, batch_size=32),
}
