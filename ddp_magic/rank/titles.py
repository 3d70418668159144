"""What models and parameters are called in the lines that the user reads."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.parameter import is_lazy

_NAMES_SHOWN = 3


def title(name: str, root: nn.Module) -> str:
    """A class of the user's own says what the model is; one of torch's needs its name."""
    own = not type(root).__module__.startswith("torch.")
    return type(root).__name__ if own else f"{name} ({type(root).__name__})"


def size(root: nn.Module) -> str:
    """Return how many parameters there are, and how many of them train."""
    parameters = [parameter for parameter in root.parameters() if not is_lazy(parameter)]
    total = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    return f"{trained:,}" if trained == total else f"{trained:,} of {total:,}"


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
