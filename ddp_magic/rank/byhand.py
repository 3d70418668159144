"""What training code does with gradients and losses past ``backward()``, averaged over ranks.

Gradients that are asked for (``torch.autograd.grad``) are those of this rank's part of the data,
and so is the loss by which a schedule decides.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ddp_magic.rank.averaging import averaged
from ddp_magic.rank.loose import LooseTensors
from ddp_magic.rank.patching import Patches
from ddp_magic.rank.registry import Registry
from ddp_magic.rank.steps import Steps, mean_over_ranks


class ByHand:
    """Averages what is not averaged in backward or before a step.

    Parameters
    ----------
    averages
        Whether that is to be done now.
    """

    def __init__(self, registry: Registry, steps: Steps, averages: Callable[[], bool]) -> None:
        self._registry = registry
        self._steps = steps
        self._averages = averages
        self._patches = Patches()

    def install(self) -> None:
        """Take up the user's calls."""
        self._patches.replace(torch.autograd, "grad", self._patched_grad)
        self._patches.replace(ReduceLROnPlateau, "step", self._patched_plateau)

    def uninstall(self) -> None:
        """Give torch its functions back."""
        self._patches.undo()

    def _patched_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            """Return averaged gradients of parameters: whoever asks for them trains by hand."""
            found = original(outputs, inputs, *args, **kwargs)
            parameters = [inputs] if isinstance(inputs, Tensor) else list(inputs)
            with_graph = any(one is not None and one.requires_grad for one in found)
            if with_graph or not self._averages():
                return found  # a graph over this rank's part is not to be cut
            places = [n for n, one in enumerate(parameters) if isinstance(one, nn.Parameter)]
            means = self._averaged(
                [found[n] for n in places], [parameters[n] for n in places], sys._getframe(1)
            )
            by_place = dict(zip(places, means, strict=True))
            return tuple(by_place.get(n, gradient) for n, gradient in enumerate(found))

        return grad

    def _averaged(
        self, gradients: Sequence[Tensor | None], parameters: list[Tensor], frame: FrameType
    ) -> Sequence[Tensor | None]:
        if not parameters:
            return gradients
        for new in self._registry.mark(parameters, frame):
            if new.equalize() and isinstance(new, LooseTensors):
                new.announce()
        identities = [id(parameter) for parameter in parameters]
        covering = [one for one in self._registry if any(map(one.covers, identities))]
        together = [one for one in covering if not one.local]
        if not all(any(one.covers(identity) for one in together) for identity in identities):
            return gradients
        for synced in together:
            synced.meet()
            synced.asked += 1
        return averaged(gradients, parameters)

    def _patched_plateau(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def step(schedule: ReduceLROnPlateau, metrics: Any, *args: Any, **kwargs: Any) -> None:
            """Decide by what all ranks measured: a loss is of each rank's part of the data."""
            if self._averages() and self._steps.are_shared(schedule.optimizer):
                metrics = mean_over_ranks(metrics)
            original(schedule, metrics, *args, **kwargs)

        return step
