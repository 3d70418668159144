"""The processes of a local session, whoever starts them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ddp_magic.core.processend import ProcessEnd

if TYPE_CHECKING:
    from ddp_magic.kernel.client import StreamingClient
    from ddp_magic.kernel.forks import ForkServer


@dataclass(frozen=True)
class Events:
    """What a cluster tells of its processes, on a thread of its own.

    Attributes
    ----------
    rank_ended
        A rank's process has ended; is not called for those that were to be ended.
    rank_printed
        Compiled code or another process of a rank's wrote text to ``stdout`` or ``stderr``.
    lost
        What all ranks need has ended, as the sentence says, and with it the ranks.
    """

    rank_ended: Callable[[int, ProcessEnd], None]
    rank_printed: Callable[[int, str, str], None]
    lost: Callable[[str], None]


class Cluster(Protocol):
    """A controller and engines on this machine, started and ended together.

    Attributes
    ----------
    note
        A sentence on what is not as it should be, or ``""``.
    preload
        Modules to import once for all ranks, where that is possible.
    """

    note: str
    preload: tuple[str, ...]

    def warm(self) -> None:
        """Do what can be done before the number of ranks is known."""

    def start(
        self, nproc: int, environment: Mapping[str, str], tell: Callable[[str], None]
    ) -> tuple[StreamingClient, dict[int, int]]:
        """Start engines; return a client that reaches them, and each rank's engine.

        Parameters
        ----------
        environment
            What the engines have in their environment besides this process's.
        tell
            Is called with a few words on what is being waited for.

        Raises
        ------
        StartError
            An engine ends or does not register in time; the caller calls `stop`.
        """

    def replace(
        self, ranks: Collection[int], environment: Mapping[str, str], tell: Callable[[str], None]
    ) -> dict[int, int]:
        """Start engines in the place of ranks that have died; return the engine of each.

        Parameters
        ----------
        environment, tell
            As of `start`.

        Raises
        ------
        StartError
            They did not start, and nothing of them is left.
        StateError
            Nothing can be started here beside what runs.
        """

    def discard(self, ranks: Collection[int]) -> None:
        """End ranks, at once; the others stay."""

    def folder(self) -> str:
        """Return a folder that only this user can enter; ``""`` if nothing runs."""

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank."""

    def flush(self) -> None:
        """Return when what ranks have printed so far has been told by `Events.rank_printed`."""

    def end_ranks(self, grace_s: float) -> None:
        """End the ranks with all that they started; `start` may follow.

        Parameters
        ----------
        grace_s
            How long they have to end by themselves.
        """

    def stop(self) -> None:
        """End all processes at once and remove the folder; safe at any time, more than once."""


def local_cluster(
    events: Events, preload: tuple[str, ...], server: ForkServer | None = None
) -> Cluster:
    """Return what starts ranks on this machine; ``server`` has been started for it, if any."""
    if can_fork():
        from ddp_magic.kernel.forked import ForkedCluster

        return ForkedCluster(events, preload, server)
    from ddp_magic.kernel.stock import StockCluster

    return StockCluster(events, preload)


def can_fork() -> bool:
    """Whether processes can be forked from one that has imported torch."""
    return hasattr(os, "fork") and sys.platform in ("linux", "darwin")
