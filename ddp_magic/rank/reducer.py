"""A `DistributedDataParallel` over parameters alone, driven from outside the model.

A DDP averages gradients in backward: its reducer hooks the parameters' gradient accumulators,
sends off a bucket of gradients as it fills, and waits for all as backward ends. Its ``forward``
has no part in that but to *arm* the reducer, which then expects one gradient of each parameter.
So the DDP here wraps a module that holds the parameters and computes nothing, and the model is
left alone: it does not matter which of its methods computes the loss, and it is no other object
for being trained. The reducer is armed as soon as it has finished, and so nearly always.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

from ddp_magic.rank import averaging


class Holder(nn.Module):
    """What a DDP of ours wraps: parameters without the model, so that it keeps no model alive."""

    def __init__(self, parameters: Iterable[nn.Parameter], sparse: frozenset[int]) -> None:
        super().__init__()
        for number, parameter in enumerate(parameters):
            part = _sparse_layer() if id(parameter) in sparse else nn.Module()
            part._parameters["weight"] = parameter
            self._modules[str(number)] = part

    def forward(self) -> None:
        """Compute nothing: calling the DDP arms its reducer."""


class Reducer:
    """The averaging of some parameters' gradients.

    Building one is a collective.

    Parameters
    ----------
    parameters
        In the same order on all ranks.
    sparse
        The identities of those whose gradients are sparse tensors.
    options
        Keywords of `DistributedDataParallel`, and ``comm_hook``, the arguments of its
        ``register_comm_hook``.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        sparse: frozenset[int],
        options: dict[str, Any],
    ) -> None:
        self.members = list(parameters)
        self.by_identity = {id(parameter): parameter for parameter in self.members}
        self.armed = False
        self._index = {id(parameter): index for index, parameter in enumerate(self.members)}
        self._sparse = sparse
        self._arms = 0
        self._has_hook = "comm_hook" in options
        kwargs = {key: value for key, value in options.items() if key != "comm_hook"}
        with AllTrainable(self.members):
            self._ddp = DistributedDataParallel(
                Holder(self.members, sparse), init_sync=False, **kwargs
            )
        self._accumulators = self._read_accumulators()
        self._pointers = list(map(Tensor.data_ptr, self.members))
        self._layout = self._read_layout()
        if self._has_hook:
            self._ddp.register_comm_hook(*options["comm_hook"])

    def __contains__(self, identity: int) -> bool:
        return identity in self._index

    def is_in_place(self) -> bool:
        """Tell whether the members' accumulators are those that the reducer hooked.

        As a parameter changes its dtype or device in place, its data moves and it gets another. If
        it changes its shape or strides, it is only the buckets that are of no use any more.
        """
        pointers = list(map(Tensor.data_ptr, self.members))
        if pointers != self._pointers:
            moved = self._read_accumulators() != self._accumulators
            if moved or self._read_layout() != self._layout:
                return False
            self._pointers = pointers
        return True

    def doubt(self) -> None:
        """Look at the accumulators themselves next time: one may be new where the data is not."""
        self._pointers = []

    def has_finished(self) -> bool:
        """Tell whether it has averaged its members since it was armed, all of them."""
        try:
            self._ddp.reducer._check_reducer_finalized()  # it says so only where it met some
        except RuntimeError:
            return False
        return self._has_hook or self._collectives() > self._collectives_before

    def arm(self) -> None:
        """Expect one gradient of each member. The second time DDP also orders its buckets anew."""
        if self._arms < 2:
            self._arms += 1
            with torch.enable_grad():
                self._ddp()
        else:
            self._ddp.reducer.prepare_for_forward()
            self._ddp.reducer.prepare_for_backward([])
        self._collectives_before = self._collectives()
        self.armed = True

    def finish(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Average the gradients that the armed reducer has not met; return when all are averaged.

        Parameters
        ----------
        parameters
            Those that it has not met in backward, with or without a gradient.

        Returns
        -------
            Those among them that no rank had a gradient for.
        """
        absent = averaging.fill_absent(parameters, self._sparse)
        self._mark_ready([self._index[id(parameter)] for parameter in parameters])
        return averaging.clear_unused(absent)

    def _mark_ready(self, indices: Sequence[int]) -> None:
        """Call the reducer's hook for these, inside a backward pass of a tensor of our own.

        As a whole reduction is complete the reducer waits for it in a callback of the engine.
        """
        hook = self._ddp.reducer._autograd_hook  # type: ignore[attr-defined]  # not in its stub

        def mark(_: Tensor) -> None:
            for index in indices:
                hook(index)

        with torch.enable_grad():
            leaf = torch.zeros((), device="cpu", requires_grad=True)
            root = leaf.clone()
        root.register_hook(mark)
        torch.autograd.grad(root, leaf)

    def _read_layout(self) -> list[tuple[torch.Size, tuple[int, ...]]]:
        return [(parameter.shape, parameter.stride()) for parameter in self.members]

    def _collectives(self) -> int:
        group: Any = self._ddp.process_group  # the method is not in its stub
        count: int = group._get_sequence_number_for_group()
        return count

    def _read_accumulators(self) -> list[Node]:
        with AllTrainable(self.members), torch.enable_grad():
            return [get_gradient_edge(parameter).node for parameter in self.members]


class AllTrainable:
    """A context in which parameters require gradients, which torch asks for to hook them."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._frozen = [parameter for parameter in parameters if not parameter.requires_grad]

    def __enter__(self) -> None:
        for parameter in self._frozen:
            parameter.requires_grad_(True)

    def __exit__(self, *_: object) -> None:
        for parameter in self._frozen:
            parameter.requires_grad_(False)


def _sparse_layer() -> nn.Module:
    """DDP knows sparse gradients by the layer's class. (This way draws no random numbers.)"""
    return nn.Embedding.from_pretrained(torch.empty(1, 1), freeze=False, sparse=True)
