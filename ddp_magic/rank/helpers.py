"""The ``ddp`` object of a cell: the few things that code for many ranks needs by name."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddp_magic.errors import StateError
from ddp_magic.rank.attach import Attacher
from ddp_magic.rank.losses import LossRecorder


class Helpers:
    """What ``ddp`` is in a cell.

    Collectives among these (`mean`, `sum`, `gather`, `barrier`, `rank0_first`, `save`, `load`) must
    be called by every rank, as any collective must.

    Raises
    ------
    StateError
        By these, in a cell that runs on some ranks alone, where they would wait for ever.
    """

    def __init__(self, losses: LossRecorder, attacher: Attacher, device: torch.device) -> None:
        self._losses = losses
        self._attacher = attacher
        self._device = device
        self._everyone = True

    def begin_cell(self, ranks: tuple[int, ...]) -> None:
        """Note which ranks run the cell."""
        self._everyone = len(ranks) == dist.get_world_size()

    def __repr__(self) -> str:
        return f"<ddp: rank {dist.get_rank()} of {dist.get_world_size()}>"

    def log(self, step: int | None = None, **values: Any) -> None:
        """Add a point to the live curve of each named value (rank 0's are shown).

        Parameters
        ----------
        step
            Where on the x axis; the training step by default.
        **values
            Scalars: numbers, or tensors and arrays of one element.

        Raises
        ------
        UsageError
            If there is none, or one is not a scalar.
        """
        self._losses.log(values, step)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on rank 0 alone."""
        if dist.get_rank() == 0:
            print(*args, **kwargs)

    def sum(self, value: Any) -> Any:
        """Return the sum of ``value`` over all ranks, of the kind that came in.

        A tensor gives a new tensor of its shape; a number gives a number.
        """
        self._need_everyone("sum")
        total = torch.as_tensor(value).detach().clone()
        dist.all_reduce(total)
        return total if isinstance(value, torch.Tensor) else total.item()

    def mean(self, value: Any) -> Any:
        """Return the mean of ``value`` over all ranks (an integer's mean is a float)."""
        self._need_everyone("mean")
        tensor = torch.as_tensor(value).detach()
        floating = tensor if tensor.is_floating_point() or tensor.is_complex() else tensor.double()
        mean = self.sum(floating) / dist.get_world_size()
        return mean if isinstance(value, torch.Tensor) else mean.item()

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's ``value`` (anything that pickles), in rank order, on all ranks."""
        self._need_everyone("gather")
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, value)
        return gathered

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self._need_everyone("barrier")
        dist.barrier()

    @contextmanager
    def rank0_first(self) -> Iterator[None]:
        """Let rank 0 do what is within, a download say, before the others do it too.

        They begin when rank 0 has come to its end, or has failed in it.
        """
        self._need_everyone("rank0_first")
        if dist.get_rank() != 0:
            dist.barrier()
        try:
            yield
        finally:
            if dist.get_rank() == 0:
                dist.barrier()

    def wrap(self, module: torch.nn.Module, **ddp_kwargs: Any) -> torch.nn.Module:
        """Attach ``module`` now, with `DistributedDataParallel`'s own options; return it."""
        return self._attacher.wrap(module, **ddp_kwargs)

    def save(self, value: Any, path: str | os.PathLike[str]) -> None:
        """Write ``value`` with `torch.save` once, by rank 0; no reader meets half a file.

        Returns on every rank when the file is there.
        """
        self._need_everyone("save")
        failure: list[BaseException | None] = [None]
        if dist.get_rank() == 0:
            failure = [_write(value, path)]
        dist.broadcast_object_list(failure)
        if failure[0] is not None:
            raise failure[0]

    def load(self, path: str | os.PathLike[str], **kwargs: Any) -> Any:
        """Return what `save` wrote, on this rank's device unless ``map_location`` is given."""
        self._need_everyone("load")
        dist.barrier()
        kwargs.setdefault("map_location", self._device)
        return torch.load(path, **kwargs)

    def _need_everyone(self, name: str) -> None:
        if not self._everyone:
            raise StateError(
                f"ddp.{name} takes every rank, and this cell runs on some alone.",
                fix="Leave -r/--ranks out, or ddp." + name + ".",
            )


def _write(value: Any, path: str | os.PathLike[str]) -> BaseException | None:
    """Write the file whole or not at all; a failure is returned, for every rank to raise."""
    temporary = Path(f"{os.fspath(path)}.{os.getpid()}.tmp")
    try:
        torch.save(value, temporary)
        temporary.replace(path)
    except (OSError, RuntimeError, TypeError, AttributeError, pickle.PicklingError) as error:
        temporary.unlink(missing_ok=True)
        return error
    return None
