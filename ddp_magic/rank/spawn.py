"""``mp.spawn`` on ranks that are there: ``fn(i, *args)`` runs on rank i, not in a new process.

A script that spawns its ranks runs as it stands, and what it leaves behind stays alive. Processes
of its own would be as many again on each rank, and would not find each other.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed import distributed_c10d

from ddp_magic.errors import StateError, UsageError
from ddp_magic.rank.patching import Patches

_SIZE_VARIABLES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE")


class LiveSpawn:
    """Lets `torch.multiprocessing.spawn` run on the ranks.

    Parameters
    ----------
    regrouped
        Is called when the default process group has become another.

    Attributes
    ----------
    everyone
        Whether all ranks run the present cell.
    """

    def __init__(self, regrouped: Callable[[], None]) -> None:
        self.everyone = True
        self._regrouped = regrouped
        self._patches = Patches()
        self._parts: dict[int, Any] = {}  # process groups of the first so many ranks
        self._pid = os.getpid()

    def install(self) -> None:
        """Take up the user's calls."""
        self._pid = os.getpid()
        spawn = sys.modules["torch.multiprocessing.spawn"]  # a function of that name hides it
        for module in (mp, spawn):
            for name in ("spawn", "start_processes"):
                if name in vars(module):
                    self._patches.replace(module, name, self._patched)

    def uninstall(self) -> None:
        """Give torch its functions back."""
        self._patches.undo()

    def on_new_group(self) -> None:
        """Forget the groups that went with the former one."""
        self._parts.clear()

    def _patched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def spawn(*args: Any, **kwargs: Any) -> Any:
            if os.getpid() != self._pid:
                return original(*args, **kwargs)
            asked = signature.bind(*args, **kwargs)
            asked.apply_defaults()
            given = asked.arguments
            self._check(given["nprocs"])
            with self._world_of(given["nprocs"]) as takes_part:
                if takes_part:
                    given["fn"](dist.get_rank(), *given["args"])
            return None if given["join"] else _Joined()

        return spawn

    def _check(self, nprocs: int) -> None:
        world_size = dist.get_world_size()
        if nprocs < 1:
            raise UsageError(
                f"mp.spawn(nprocs={nprocs}) would run nothing.",
                fix=f"Use nprocs=world_size, which is {world_size} here"
                " (torch.cuda.device_count() counts GPUs alone).",
            )
        if nprocs > world_size:
            raise StateError(
                f"mp.spawn(nprocs={nprocs}) runs on this session's ranks, which are {world_size}.",
                fix=f"Use nprocs={world_size}, or `%ddp restart -n {nprocs}`.",
            )
        if not self.everyone:
            raise StateError(
                "mp.spawn runs on the ranks that are there, and this cell is on some alone.",
                fix="Leave -r/--ranks out.",
            )

    @contextmanager
    def _world_of(self, size: int) -> Iterator[bool]:
        """Make the first ranks the whole world; tell whether this one belongs to it."""
        if size == dist.get_world_size():
            yield True
            return
        whole, takes_part = dist.group.WORLD, dist.get_rank() < size
        if size not in self._parts:
            self._parts[size] = dist.new_group(range(size))
        if not takes_part:
            yield False
            return
        before = {name: os.environ.get(name) for name in _SIZE_VARIABLES}
        self._set_world(self._parts[size], dict.fromkeys(_SIZE_VARIABLES, str(size)))
        try:
            yield True
        finally:
            self._set_world(whole, before)

    def _set_world(self, group: Any, variables: dict[str, str | None]) -> None:
        distributed_c10d._update_default_pg(group)
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._regrouped()


class _Joined:
    """What ``spawn(join=False)`` returns here: nothing is left to wait for."""

    processes: tuple[Any, ...] = ()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Return that all have ended."""
        return True

    def pids(self) -> list[int]:
        """Return the process ids that were made: none."""
        return []
