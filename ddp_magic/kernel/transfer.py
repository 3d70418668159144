"""Moves variables between the notebook and ranks, also while those run a cell."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from ddp_magic.core.names import VariablePath
from ddp_magic.core.parcel import Parcel, pack
from ddp_magic.core.pulled import missing_cause
from ddp_magic.core.ranks import named
from ddp_magic.errors import DdpMagicError, StateError, UsageError
from ddp_magic.kernel.machine import free_bytes
from ddp_magic.kernel.pickling import NotebookPickler, is_plain, open_parcel
from ddp_magic.kernel.sharedmemory import SharedMemory
from ddp_magic.kernel.world import World

_TARGET = "ddp_magic.rank.transfer:"
_INLINE_BYTES = 2**18  # less than this comes faster in a message
_PATIENCE_S = 10.0  # for pickling
_MARGIN_S = 2.0
_BYTES_PER_S = 5e7  # what no machine is slower than

Tell = Callable[[str], None]


class Transfer:
    """One transfer between the notebook and some ranks.

    Parameters
    ----------
    ranks
        All by default.
    tell
        Is given a line if there is something to say.

    Raises
    ------
    UsageError
        There is no such rank.
    StateError
        One of them has died.
    """

    def __init__(
        self, world: World, ranks: Iterable[int] | None, tell: Tell, patience_s: float = _PATIENCE_S
    ) -> None:
        self._world = world
        self.ranks = tuple(world.targets(ranks))
        self._tell = tell
        self._patience_s = patience_s
        self._payload: dict[str, Any] = {"ticket": secrets.token_hex(8), "patience_s": patience_s}

    def pull(self, paths: Mapping[str, VariablePath]) -> dict[str, list[Any]]:
        """Return each variable's value on each rank, in rank order.

        Raises
        ------
        UsageError
            A rank has no such variable, a value cannot travel, or there is no room for it.
        StateError
            A rank did not answer.
        """
        try:
            parcels = self._collect(paths)
        except BaseException:
            self._forget()
            raise
        called = ", ".join(map(str, paths.values()))
        opened = [open_parcel(called, parcels[rank]) for rank in self.ranks]
        return {name: [one[str(path)] for one in opened] for name, path in paths.items()}

    def push(self, variables: Mapping[str, Any]) -> None:
        """Set variables on the ranks: on all of them or, if something fails, on none.

        Raises
        ------
        UsageError
            A value cannot travel, or cannot be made on a rank.
        StateError
            A rank did not answer.
        """
        parcel = pack(dict(variables), NotebookPickler)
        self._check_room(parcel.nbytes, 1, list(variables))
        self._payload["at_once"] = at_once = all(map(is_plain, variables.values()))
        try:
            if parcel.nbytes <= _INLINE_BYTES:
                self._send(parcel, self.ranks)
            else:
                self._share(parcel)
            if not at_once:
                self._ask("set_received", {}, self.ranks)
        except BaseException:
            self._forget()
            raise

    # ---- from ranks

    def _collect(self, paths: Mapping[str, VariablePath]) -> dict[int, Parcel]:
        wires = {name: path.to_wire() for name, path in paths.items()}
        payload = {"paths": wires, "inline_bytes": _INLINE_BYTES}
        told = self._ask("pack_variables", payload, self.ranks)
        self._check_missing(told, paths)
        parcels = {r: Parcel.of_parts(one["parts"]) for r, one in told.items() if "parts" in one}
        sizes = {rank: one["nbytes"] for rank, one in told.items() if "nbytes" in one}
        self._check_room(sum(sizes.values()), len(sizes), [str(path) for path in paths.values()])
        shared, left = self._read_shared(sizes)
        parcels.update(shared)
        if left:
            told = self._ask("send", {}, left, sum(sizes[rank] for rank in left))
            parcels.update({rank: Parcel.of_parts(one["parts"]) for rank, one in told.items()})
        return parcels

    def _read_shared(self, sizes: Mapping[int, int]) -> tuple[dict[int, Parcel], list[int]]:
        """Have ranks write to memory of this process; return it, and the ranks that cannot."""
        reachable = [rank for rank in sizes if self._shares_memory(rank)]
        with ExitStack() as stack:
            memories = {rank: stack.enter_context(SharedMemory()) for rank in reachable}
            payloads = {rank: {"address": one.address} for rank, one in memories.items()}
            told = self._ask_each("write_shared", payloads, sum(sizes.values()))
            parcels = {
                rank: Parcel.within(memories[rank].view(), one["spans"])
                for rank, one in told.items()
                if "spans" in one
            }
        left = [rank for rank in sizes if rank not in parcels]
        self._note_unshared(left, told)
        return parcels, left

    def _check_missing(
        self, told: Mapping[int, dict[str, Any]], paths: Mapping[str, VariablePath]
    ) -> None:
        for name, path in paths.items():
            lacking = {
                rank: one["missing"][name]
                for rank, one in told.items()
                if name in one.get("missing", {})
            }
            if lacking:
                having = [rank for rank in self.ranks if rank not in lacking]
                cause, fix = missing_cause(str(path), lacking, having)
                raise UsageError(cause, fix=fix)

    # ---- to ranks

    def _share(self, parcel: Parcel) -> None:
        reachable = [rank for rank in self.ranks if self._shares_memory(rank)]
        told: dict[int, Any] = {}
        if reachable:
            with SharedMemory() as memory:
                payload = {"address": memory.address, "spans": memory.write(parcel)}
                told = self._ask("receive", payload, reachable)
        left = [rank for rank in self.ranks if "unshared" in told.get(rank, {"unshared": ""})]
        self._note_unshared(left, told)
        if left:
            self._send(parcel, left)

    def _send(self, parcel: Parcel, ranks: Iterable[int]) -> None:
        ranks = tuple(ranks)
        nbytes = parcel.nbytes * len(ranks)
        self._ask("receive", {"parts": parcel.in_bytes()}, ranks, nbytes)

    # ---- both

    def _ask(
        self, function: str, payload: dict[str, Any], ranks: Iterable[int], nbytes: int = 0
    ) -> dict[int, Any]:
        return self._ask_each(function, dict.fromkeys(ranks, payload), nbytes)

    def _ask_each(
        self, function: str, payloads: Mapping[int, dict[str, Any]], nbytes: int
    ) -> dict[int, Any]:
        """Ask ranks, and raise what they raised; ``nbytes`` is what is moved meanwhile."""
        timeout_s = self._patience_s + _MARGIN_S + nbytes / _BYTES_PER_S
        full = {rank: {**self._payload, **payload} for rank, payload in payloads.items()}
        told = self._world.ask_each(_TARGET + function, full, timeout_s)
        failed = {rank: one for rank, one in told.items() if isinstance(one, DdpMagicError)}
        if failed:
            raise _together(failed)
        return told

    def _forget(self) -> None:
        """Have ranks drop what was begun, when they come to it."""
        payloads = dict.fromkeys(self.ranks, self._payload)
        self._world.ask_each(_TARGET + "drop", payloads, timeout_s=0)

    def _shares_memory(self, rank: int) -> bool:
        here = self._world.places[rank]["host"] == socket.gethostname()
        return here and SharedMemory.is_available()

    def _note_unshared(self, ranks: Iterable[int], told: Mapping[int, dict[str, Any]]) -> None:
        ranks = tuple(ranks)
        if ranks:
            why = next((one["unshared"] for one in told.values() if "unshared" in one), "")
            reason = f" ({why})" if why else ""
            self._tell(f"ddp: no memory is shared with {named(ranks)}{reason}: messages are slower")

    def _check_room(self, nbytes: int, count: int, names: Iterable[str]) -> None:
        free = free_bytes() if nbytes > _INLINE_BYTES else nbytes
        if nbytes > free:
            each = f", of {count} ranks," if count > 1 else ""
            raise UsageError(
                f"{', '.join(names)}{each}: {nbytes / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB"
                " of memory are free",
                fix="move a part of it, or use fewer ranks (-r)",
            )


def _together(failed: Mapping[int, DdpMagicError]) -> DdpMagicError:
    """Return one error for those of several ranks."""
    unanswered = [one for one in failed.values() if isinstance(one, StateError)]
    if unanswered:
        return StateError("; ".join(map(str, unanswered)))
    groups: dict[str, list[int]] = {}
    for rank, error in failed.items():
        groups.setdefault(str(error), []).append(rank)
    return UsageError("\n".join(f"{named(ranks)}: {text}" for text, ranks in groups.items()))
