"""Tensors outside any module that are trained: ``w = torch.randn(3, requires_grad=True)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import TensorWeakRef

from ddp_magic.rank import agreement
from ddp_magic.rank.agreement import Verdict
from ddp_magic.rank.averaging import average_gradients
from ddp_magic.rank.report import Report
from ddp_magic.rank.rounds import Rounds


class LooseTensors:
    """Leaf tensors that were met together, averaged together after each backward.

    It keeps none of them alive.

    Attributes
    ----------
    label, fired, extra, reduces, asked, local, takes, agreed
        As of an `Attachment`; nothing is ever ``extra``.
    """

    def __init__(self, named: Sequence[tuple[str, Tensor]], rounds: Rounds, report: Report) -> None:
        self.fired: list[Tensor] = []
        self.extra: list[Tensor] = []
        self.reduces = self.asked = 0
        self.local = False
        self.takes = 0
        self.agreed: tuple[int, int] | None = None
        self._are_parameters = all(isinstance(tensor, nn.Parameter) for _, tensor in named)
        self.label = ", ".join(name for name, _ in named)
        self._names = [name for name, _ in named]
        self._tensors = [TensorWeakRef(tensor) for _, tensor in named]
        self._report = report
        self._rounds = rounds
        self._met_in: int | None = None
        self._hooks: list[RemovableHandle] = []
        for _, tensor in named:
            if tensor.requires_grad:
                hook = tensor.register_post_accumulate_grad_hook(self.fired.append)
                self._hooks.append(hook)

    def values(self) -> list[Tensor]:
        """Return the tensors that are still there."""
        return [tensor for ref in self._tensors if (tensor := ref()) is not None]

    def named_values(self) -> list[tuple[str, Tensor]]:
        """Return these with their names."""
        pairs = zip(self._names, self._tensors, strict=True)
        return [(name, tensor) for name, ref in pairs if (tensor := ref()) is not None]

    def covers(self, identity: int) -> bool:
        """Tell whether the tensor of this identity is one of them."""
        return any(id(tensor) == identity for tensor in self.values())

    def equalize(self) -> bool:
        """See that all ranks have the same values; return whether these are to be averaged.

        ``nn.Parameter`` that differ get rank 0's values. Other tensors that differ are data.
        """
        verdict = agreement.compare(self._rounds, self.label, self.layout(), self.values())
        self._met_in = self._rounds.cell
        self.agreed = self._rounds.last
        if verdict is Verdict.DIFFERENT and self._are_parameters:
            self.take_values()
        elif verdict is not Verdict.EQUAL:
            self.local = True
            self.release()
            self._notice(
                "local",
                "is not the same on all ranks, so it is taken for data, its gradient not averaged "
                "(an nn.Parameter would be)",
            )
        return not self.local

    def layout(self) -> list[str]:
        """Return a line for each tensor: what has to be alike on all ranks."""
        return agreement.describe(list(zip(self._names, self.values(), strict=False)))

    def take_values(self) -> None:
        """Give all ranks the values of rank 0; a collective."""
        agreement.broadcast(self.values())
        self.takes += 1

    def record(self) -> dict[str, Any]:
        """Return what another rank has to know to be in step with this one."""
        return {
            "named": self.named_values(),
            "reduces": self.reduces,
            "asked": self.asked,
            "met_in": self._met_in,
            "agreed": self.agreed,
        }

    def take_up(self, record: dict[str, Any]) -> None:
        """Be as these are on another rank."""
        self.reduces, self.asked = record["reduces"], record["asked"]
        self._met_in, self.agreed = record["met_in"], record["agreed"]

    def own_hooks(self) -> list[int]:
        """Return the numbers of the hooks that these are, on the tensors."""
        return [hook.id for hook in self._hooks]

    def meet(self) -> None:
        """See, once in a cell, that every rank is about to average these (or `ParityError`)."""
        if not self.local and self._met_in not in (None, self._rounds.cell):
            agreement.meet(self._rounds, self.label)
            self._met_in = self._rounds.cell

    def reduce(self) -> None:
        """Let every gradient be the mean over ranks."""
        self.reduces += 1
        self.fired.clear()
        if not self.local:
            average_gradients(self.values())

    def announce(self) -> None:
        """Say that these are averaged."""
        self._notice("averaged", "belongs to no module; its gradient is averaged over ranks")

    def drop(self) -> None:
        """Forget what gradients there were."""
        self.fired.clear()

    forget = drop

    def wait_for_backward(self) -> None:
        """These always do."""

    disarm = look_closely = wait_for_backward

    def release(self) -> None:
        """Take the hooks off the tensors."""
        self.drop()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _notice(self, cause: str, text: str) -> None:
        self._report.notice(f"loose:{cause}:{self.label}", f"`{self.label}` {text}")
