"""Do the ranks agree, as a cell ends, on what they did and on what they trained?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddp_magic.core.checked import Checked
from ddp_magic.core.ranks import named


@dataclass(frozen=True)
class Attested:
    """What one rank says of itself as a cell ends.

    Attributes
    ----------
    collectives
        How many the process group has made in the cell; None where pairs of ranks talked, which the
        group counts too.
    trained
        A checksum of each model that the cell trained, by the user's name and class for it.
    managed
        The same of the DDP objects that are the user's own.
    """

    collectives: int | None
    trained: Mapping[str, int]
    managed: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Attested:
        """Read what a rank has sent."""
        return cls(wire["collectives"], dict(wire["trained"]), dict(wire["managed"]))


@dataclass(frozen=True)
class Closing:
    """What one rank says as it ends a cell, however it did.

    Attributes
    ----------
    counts
        How many collectives each of its process groups has begun, by the group's name.
    unmet
        The collective to which not every rank came, or ``""``; code may have gone on after that.
    clash
        How the ranks' calls did not match, or ``""``; likewise.
    attested
        What must be alike on all ranks, if they were to keep in step.
    checked
        Checksums of all models, if the cell was to be checked and has not failed.
    """

    counts: Mapping[str, int]
    unmet: str = ""
    clash: str = ""
    attested: Attested | None = None
    checked: Checked | None = None

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Closing:
        """Read what a rank has sent."""
        attested, checked = wire["attested"], wire["checked"]
        read = Attested.from_wire(attested) if attested else None
        return cls(**{**wire, "attested": read, "checked": checked and Checked(**checked)})


def disagreement(attested: Mapping[int, Attested]) -> str:
    """Return what the ranks disagree on, the first of it, as a sentence; ``""`` if on nothing."""
    if drifted := _drifted({rank: one.trained for rank, one in attested.items()}):
        return drifted
    counts: dict[int, list[int]] = {}
    for rank, one in sorted(attested.items()):
        if one.collectives is None:
            return ""
        counts.setdefault(one.collectives, []).append(rank)
    if len(counts) > 1:
        most = max(counts)
        told = ", ".join(
            f"{named(ranks)} {most - count} fewer than {named(counts[most])}"
            for count, ranks in counts.items()
            if count < most
        )
        return f"The ranks did not make the same collectives: {told}"
    return ""


def managed_drift(attested: Mapping[int, Attested]) -> str:
    """Return which DDP of the user's differs between ranks, perhaps on purpose; or ``""``."""
    return _drifted({rank: one.managed for rank, one in attested.items()})


def _drifted(sums: Mapping[int, Mapping[str, int]]) -> str:
    for label in dict.fromkeys(label for one in sums.values() for label in one):
        groups: dict[int, list[int]] = {}
        for rank, one in sorted(sums.items()):
            if label in one:
                groups.setdefault(one[label], []).append(rank)
        if len(groups) > 1:
            told = " and ".join(named(ranks) for ranks in groups.values())
            return f"{label} is not the same on all ranks any more: {told} differ"
    return ""
