"""The process group of this rank: its environment, its device, joining and leaving."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits

from ddp_magic.core.advice import advice_on
from ddp_magic.errors import SetupError, StartError
from ddp_magic.rank.guard import Guard

# A cell may train or wait for as long as it likes; what can be decided is decided by the
# session and not by a time-out of the process group.
_COLLECTIVE_TIMEOUT = timedelta(days=7)


@dataclass(frozen=True)
class Membership:
    """This rank's place in the world, as agreed with the notebook.

    Attributes
    ----------
    backend
        ``"gloo"``, or ``"cpu:gloo,cuda:nccl"`` for tensors on either device.
    device
        Where this rank trains: ``"cpu"`` or ``"cuda:1"``.
    store
        Path of the `FileStore` in the session's private folder.
    stack_signal
        On which it writes where its main thread is, even if no other thread can run.
    """

    rank: int
    local_rank: int
    world_size: int
    backend: str
    device: str
    store: str
    stack_signal: int
    threads: int
    environment: dict[str, str]

    def join(self, guard: Guard) -> None:
        """Set up environment, threads and device, and join the process group.

        Raises
        ------
        SetupError
            If this torch lacks the backend.
        StartError
            Names what failed.
        """
        os.environ.update(self.environment)
        self._check_backend()
        # The libraries may have been loaded, and have read the environment, before it was known.
        torch.set_num_threads(self.threads)
        threadpool_limits(self.threads)
        if self.device.startswith("cuda"):
            with _phase(f"taking its GPU ({self.device})"):
                torch.cuda.set_device(self.device)
        self.join_group(self.meet(), guard)

    def meet(self) -> dist.Store:
        """Return the store of the process group when all ranks have come to it.

        The session ends the waiting in it, if it has to, by putting a folder in the store's place.
        """
        with _phase("finding the other ranks"):
            store = dist.FileStore(self.store, self.world_size)
            store.set(f"here/{self.rank}", "")
            everyone = [f"here/{rank}" for rank in range(self.world_size)]
            store.wait(everyone, _COLLECTIVE_TIMEOUT)
        return store

    def join_group(self, store: dist.Store, guard: Guard) -> None:
        """Join the process group, whose connections ``guard`` takes note of."""
        with _phase("finding the other ranks"), guard.noting():
            dist.init_process_group(
                self.backend,
                store=store,
                rank=self.rank,
                world_size=self.world_size,
                timeout=_COLLECTIVE_TIMEOUT,
            )
        # gloo connects at the first collective: do it now, while a failure is still the start's.
        with _phase("the first collective"):
            dist.barrier()

    def _check_backend(self) -> None:
        if not dist.is_available():
            raise SetupError(
                f"This torch ({torch.__version__}) was built without torch.distributed.",
                fix="Install a build that has it.",
            )
        if "nccl" in self.backend and not (dist.is_nccl_available() and torch.cuda.is_available()):
            raise SetupError(
                f"--backend nccl: this torch ({torch.__version__}) has no NCCL or sees no GPU.",
                fix="Use --backend gloo, or install a CUDA build of torch.",
            )

    def describe(self) -> dict[str, Any]:
        """Return what the notebook shows of this rank."""
        return {
            "rank": self.rank,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "device": self.device,
            "torch": str(torch.__version__),  # a plain str: TorchVersion would bring torch along
            "cuda": torch.cuda.is_available(),
        }


@contextmanager
def _phase(name: str) -> Iterator[None]:
    """Say in which phase of the start an error was raised."""
    try:
        yield
    except Exception as error:
        raise StartError(
            f"{name} failed: {type(error).__name__}: {error}", fix=advice_on(str(error))
        ) from error
