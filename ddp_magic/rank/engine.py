"""A rank: everything that one process of the world holds, and the life of a cell on it."""

from __future__ import annotations

import builtins
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ddp_magic.core.plan import CellPlan
from ddp_magic.errors import StartError, StateError
from ddp_magic.rank import group
from ddp_magic.rank.attach import Attacher
from ddp_magic.rank.files import AtomicSave
from ddp_magic.rank.helpers import Helpers
from ddp_magic.rank.hygiene import clean_process
from ddp_magic.rank.loaders import LoaderSharder
from ddp_magic.rank.losses import LossRecorder
from ddp_magic.rank.seeding import seed_everything
from ddp_magic.rank.shell import RankKernel, this_shell
from ddp_magic.rank.streams import FloodGate
from ddp_magic.rank.telemetry import Channel, RankReport, Sampler
from ddp_magic.rank.userdist import UserDistributed
from ddp_magic.version import __version__


class Rank:
    """One process of the world, from `join` until it ends."""

    def __init__(self, membership: group.Membership, kernel: RankKernel) -> None:
        self.membership = membership
        self.channel = Channel(kernel)
        heading = f"ddp: {membership.world_size} ranks, {membership.backend}"
        self.report = RankReport(self.channel.send, heading)
        self.attacher = Attacher(self.report)
        self.sharder = LoaderSharder(self.report)
        self.losses = LossRecorder()
        self.sampler = Sampler(self.losses.drain, self.report, self.channel.send)
        self.gate = FloodGate(sys.stdout, sys.stderr)
        # In this order: the first three each wrap what the one before put around `backward`.
        self.parts = (
            self.attacher,
            self.sharder,
            self.losses,
            UserDistributed(self.report),
            AtomicSave(),
            self.gate,
        )

    def install(self, seed: int) -> None:
        """Seed this process, hook into torch and give cells their names."""
        seed_everything(seed)
        for part in self.parts:
            part.install()
        place = self.membership
        device = torch.device(place.device)
        self.helpers = Helpers(self.losses, self.attacher, device)
        names: dict[str, Any] = {
            "rank": place.rank,
            "world_size": place.world_size,
            "local_rank": place.local_rank,
            "device": device,
            "ddp": self.helpers,
        }
        # As IPython does for `display`: builtins are seen from every cell and function, never
        # overwrite a user's variable, and are no globals that a script would take for its own.
        for name, value in names.items():
            setattr(builtins, name, value)

    @contextmanager
    def cell(self, wire: dict[str, Any]) -> Iterator[None]:
        """Surround one cell."""
        plan = CellPlan.from_wire(wire)
        self._begin(plan, leads=self.membership.rank == min(plan.ranks))
        try:
            with clean_process():
                yield
        finally:
            self.losses.recording = False
            self.sampler.end_cell()
            self._ended_s = time.time()

    def close_cell(self, *, failed: bool) -> None:
        """Tell the notebook what the reply does not, when all that was printed has been sent."""
        ending = self.gate.end_cell()
        if failed or ending:
            self.channel.send({"kind": "ended", "at_s": self._ended_s, "ending": ending})

    def _begin(self, plan: CellPlan, leads: bool) -> None:
        whole = len(plan.ranks) == self.membership.world_size
        self.channel.begin_cell()
        self.helpers.begin_cell(plan.ranks)
        self.attacher.active = plan.wrap and whole
        self.sharder.shard = plan.shard and whole
        self.sharder.batch = plan.batch
        self.losses.begin_cell()
        self.losses.recording = plan.plot and leads
        self.gate.begin_cell()
        if leads:
            self.sampler.begin_cell()
        if plan.resync:
            self.attacher.resync()


def join(payload: dict[str, Any]) -> dict[str, Any]:
    """Make this engine a rank of the world; return what the notebook shows of it."""
    if payload["version"] != __version__:
        raise StartError(
            f"The notebook runs ddp_magic {payload['version']}, this engine {__version__}.",
            fix="Install the same version in both environments.",
        )
    membership = group.Membership(**payload["membership"])
    membership.join()
    kernel = this_shell().kernel
    rank = Rank(membership, kernel)
    kernel.rank = rank
    rank.install(payload["seed"])
    RankKernel.adopt(kernel, rank)
    return membership.describe()


def current() -> Rank:
    """Return the rank that this process is.

    Raises
    ------
    StateError
        If this engine has not joined.
    """
    rank = getattr(this_shell().kernel, "rank", None)
    if rank is None:
        raise StateError("This engine has not joined a world.", fix="Run `%ddp restart`.")
    return rank
