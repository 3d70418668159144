"""A rank: everything that one process of the world holds, and the life of a cell on it."""

from __future__ import annotations

import builtins
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddp_magic.core.plan import CellPlan
from ddp_magic.core.question import Asks
from ddp_magic.errors import StartError, StateError
from ddp_magic.rank import group
from ddp_magic.rank.anomaly import AnomalyDetector
from ddp_magic.rank.attach import Attacher
from ddp_magic.rank.attachment import Attachment
from ddp_magic.rank.breakpoints import Breakpoints
from ddp_magic.rank.debugger import RankPdb
from ddp_magic.rank.effects import SharedEffects
from ddp_magic.rank.files import AtomicSave
from ddp_magic.rank.flight import FlightRecorder
from ddp_magic.rank.guard import Guard
from ddp_magic.rank.helpers import Helpers
from ddp_magic.rank.hygiene import clean_process
from ddp_magic.rank.loaders import LoaderSharder
from ddp_magic.rank.losses import LossRecorder
from ddp_magic.rank.mainpickle import PickledMain
from ddp_magic.rank.meetings import Meetings
from ddp_magic.rank.memory import device_load, own_memory_bytes
from ddp_magic.rank.owngpu import OwnGpu
from ddp_magic.rank.prompts import Prompts
from ddp_magic.rank.pulse import PulseThread
from ddp_magic.rank.script import run_program
from ddp_magic.rank.seeding import seed_everything
from ddp_magic.rank.shell import RankKernel, cell_folder, this_shell
from ddp_magic.rank.spawn import LiveSpawn
from ddp_magic.rank.stopping import Stopping
from ddp_magic.rank.streams import FloodGate
from ddp_magic.rank.telemetry import Channel, RankReport, Sampler
from ddp_magic.rank.untraced import Untraced
from ddp_magic.rank.userdist import UserDistributed
from ddp_magic.rank.where import has_threads, main_place, thread_ids, work_s
from ddp_magic.rank.witness import Witness
from ddp_magic.version import __version__


class Rank:
    """One process of the world, from `join` until it ends."""

    def __init__(
        self,
        membership: group.Membership,
        guard: Guard,
        flight: FlightRecorder,
        idle_threads: frozenset[str],
        kernel: RankKernel,
    ) -> None:
        self.membership = membership
        self.guard = guard
        self.flight = flight
        self._idle_threads = idle_threads
        self.channel = Channel(kernel)
        heading = f"ddp: {membership.world_size} ranks, {membership.backend}"
        self.report = RankReport(self.channel.send, heading)
        self.meetings = Meetings()
        self.attacher = Attacher(self.report, self.meetings)
        self.sharder = LoaderSharder(self.report, self.attacher)
        self.losses = LossRecorder()
        self.userdist = UserDistributed(self.report)
        self.spawn = LiveSpawn(self._take_up_group)
        self.sampler = Sampler(self.losses.drain, self.report, self.channel.send)
        self._folder = Path(membership.store).parent
        self.effects = SharedEffects(self._folder, membership.rank, membership.world_size)
        self.gate = FloodGate(sys.stdout, sys.stderr)
        self.witness = Witness(self.attacher)
        self.pulse = PulseThread(self._pulse, self.channel.send, self.channel.open_for_thread)
        self.prompts = Prompts(self.channel.send, lambda: kernel.in_user_code)
        self.breakpoints = Breakpoints(self.prompts, self.report)
        self.anomaly = AnomalyDetector(self.attacher.named_models)
        self._former: Any = None  # the last process group, until another is taken up
        # In this order: the first three each wrap what the one before put around `backward`.
        self.parts = (
            self.attacher,
            self.sharder,
            self.losses,
            self.userdist,
            AtomicSave(),
            self.gate,
            self.witness,
            Untraced(),
            self.guard,
            self.spawn,
            self.effects,
            PickledMain(),
            self.meetings,
            self.breakpoints,
            Stopping(lambda: kernel.stopped),
        )

    def install(self, seed: int) -> None:
        """Seed this process, hook into torch and give cells their names."""
        seed_everything(seed)
        for part in self.parts:
            part.install()
        self._meet_in_group()
        place = self.membership
        stack = os.open(f"{self._folder}/stack-{place.rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        faulthandler.register(place.stack_signal, stack, all_threads=False)
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
        if device.type == "cuda" and place.world_size > 1:
            this_shell().ast_transformers.append(OwnGpu(device.index, self.report))

    @contextmanager
    def cell(self, wire: dict[str, Any]) -> Iterator[None]:
        """Surround one cell."""
        plan = CellPlan.from_wire(wire)
        self._begin(plan, leads=self.membership.rank == min(plan.ranks))
        try:
            with clean_process():
                yield
        finally:
            self._ended_s: float = time.time()
            self.pulse.end_cell()
            self.breakpoints.end_cell()
            self.prompts.end_cell()
            self.anomaly.end_cell()
            self.effects.end_cell()
            if self._together:
                self.attacher.end_cell(failed=self._failed)
            self.meetings.end_cell(failed=self._failed)
            self.losses.recording = False
            self.sampler.end_cell()

    def run_program(
        self, name: str, args: list[str], namespace: dict[str, Any], **how: Any
    ) -> None:
        """Run a script or module, and say so if it has trained nothing."""
        before = self.sharder.trainings
        run_program(name, args, namespace, **how)
        if self.sharder.trainings == before:
            self.report.notice(f"untrained:{name}", f"{name} has ended, and has trained nothing")

    def ask(self, prompt: str, *, is_password: bool) -> str:
        """Return what is typed in the notebook, the same on all ranks that ask the same."""
        return self.prompts.ask(Asks.PASSWORD if is_password else Asks.INPUT, prompt)

    def take_answer(self, wire: dict[str, Any]) -> None:
        """Take what was typed."""
        self.prompts.take(wire)

    def look_into(self, failure: BaseException) -> None:
        """Have it looked into, with pdb."""
        RankPdb().look_into(failure)

    def look(self) -> dict[str, Any]:
        """Return what shows whether this rank waits for others; may be called on any thread.

        See `ddp_magic.core.deadlock.Look`; ``call`` is the collective that waits to begin.
        """
        call, awaits = self.meetings.waits()
        if (rank := self.attacher.awaits()) is not None:
            awaits = [rank]
        counts = self.flight.counts()
        ops = [] if awaits or self.witness.pairs else self.flight.pending()
        times = {"cpu_s": work_s(self._idle_threads), "at_s": time.time()}
        known = {"counts": counts, "ops": ops, "awaits": awaits, "has_threads": has_threads()}
        return {"call": call, **known, **times}

    def _pulse(self) -> dict[str, Any]:
        """Return what this rank does now (see `ddp_magic.core.runstate.Pulse`)."""
        look, place = self.look(), main_place(cell_folder())
        if look["call"]:
            place = replace(place, collective=look["call"])
        waits = place.waits and (look["ops"] or look["awaits"])
        on_cpu = torch.device(self.membership.device).type == "cpu"
        return {
            "at_s": time.monotonic() - self._begun_s,
            "step": self.losses.step or self.sharder.trainings - self._begun_step,
            **self.sharder.progress(),
            "waited_s": Attachment.waited_s if on_cpu else None,
            "memory_bytes": own_memory_bytes(),
            **device_load(self.membership.device),
            "waits_in": place.where if waits else "",
        }

    def free(self) -> None:
        """End what this rank waits for in a collective; may be called on any thread."""
        if dist.is_initialized():  # not, for a moment, while the rank joins another group
            self.guard.free()
        self.attacher.free()
        self.meetings.free()

    def regroup(self, store: str) -> bool:
        """Leave the process group, of which no collective is needed any more, for a new one.

        Not before every rank has come to its store: until then nothing has changed here.

        Returns
        -------
        bool
            Whether the user had made groups beside it, which have gone, too.
        """
        had_subgroups = self.guard.has_subgroups
        membership = replace(self.membership, store=store)
        met = membership.meet()
        self._former = dist.group.WORLD or self._former
        with self.userdist.aside():
            if dist.is_initialized():  # not, where joining the last one failed half way
                self.guard.free()
                dist.destroy_process_group()
            self.membership = membership
            membership.join_group(met, self.guard)
        self.guard.has_subgroups = False
        self._meet_in_group()
        self.spawn.on_new_group()
        former, self._former = self._former, None
        self._take_up_group(former)
        return had_subgroups

    def _meet_in_group(self) -> None:
        self.flight.on_new_group()
        self.meetings.on_new_group(f"{self.membership.store}-board")

    def _take_up_group(self, former: Any = None) -> None:
        self.attacher.on_new_group(former)
        self.sharder.on_new_group()

    def note_end(self, *, failed: bool) -> None:
        """Keep how the cell's code ended."""
        self._failed = failed

    def close_cell(self, *, failed: bool) -> dict[str, Any]:
        """Tell the notebook how the cell ended, when all that was printed has been sent."""
        ending = self.gate.end_cell()
        if failed or ending:
            self.channel.send({"kind": "ended", "at_s": self._ended_s, "ending": ending})
        return {
            "counts": self.flight.counts(),
            "unmet": self.meetings.unmet or (self.attacher.unmet if self._together else ""),
            "clash": self.meetings.clash,
            "attested": self.witness.attest(trained=not failed) if self._together else None,
            "checked": self.attacher.all_checksums() if self._checks and not failed else None,
        }

    def _begin(self, plan: CellPlan, leads: bool) -> None:
        whole = len(plan.ranks) == self.membership.world_size
        self._together = plan.wrap and whole
        self._checks = plan.check
        self._failed = True  # until it is known
        self.channel.begin_cell()
        self.prompts.begin_cell(plan.no_input)
        self._begun_s, self._begun_step = time.monotonic(), self.sharder.trainings
        self.breakpoints.begin_cell(plan.number)
        self.helpers.begin_cell(plan.ranks)
        self.spawn.everyone = whole
        self.attacher.active = self._together
        if self._together:
            self.attacher.begin_cell(plan.number)
            self.witness.begin_cell()
        self.meetings.begin_cell(plan.number, whole)
        self.sharder.shard = plan.shard and whole
        self.sharder.batch = plan.batch
        self.losses.begin_cell()
        self.losses.recording = plan.plot
        self.gate.begin_cell()
        if leads:
            self.sampler.begin_cell()
        if plan.resync:
            self.attacher.resync()
        if whole:
            self.effects.begin_cell(plan.number)
        if plan.detect_anomaly:
            self.anomaly.begin_cell()
        self.pulse.begin_cell()


def join(payload: dict[str, Any]) -> dict[str, Any]:
    """Make this engine a rank of the world; return what the notebook shows of it."""
    if payload["version"] != __version__:
        raise StartError(
            f"The notebook runs ddp_magic {payload['version']}, this engine {__version__}.",
            fix="Install the same version in both environments.",
        )
    membership = group.Membership(**payload["membership"])
    guard, flight = Guard(), FlightRecorder()
    flight.install()
    # Those of the engine, which answer whoever asks; the process group's are made next.
    idle_threads = thread_ids() - {str(threading.main_thread().native_id)}
    membership.join(guard)
    kernel = this_shell().kernel
    rank = Rank(membership, guard, flight, idle_threads, kernel)
    kernel.rank = rank
    rank.install(payload["seed"])
    RankKernel.adopt(kernel, rank)
    return membership.describe()


def regroup(payload: dict[str, Any]) -> bool:
    """Take part in a new process group, for which there is a ``store`` (see `Rank.regroup`)."""
    return current().regroup(payload["store"])


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
