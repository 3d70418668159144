"""Bring the ranks together again after they did not all run the same cells."""

from __future__ import annotations

import torch.distributed as dist

from ddp_magic.rank.agreement import checksum, text_checksum
from ddp_magic.rank.attachment import Attachment
from ddp_magic.rank.registry import Registry, Synced

_Key = tuple[str, int]  # the label, and which of those that have it


def rejoin(registry: Registry) -> list[Synced]:
    """Give all ranks rank 0's values of what all of them have; a collective.

    Returns
    -------
        What some rank lacks, or has in another shape.
    """
    present = _by_label(registry)
    mine = {key: _fingerprint(synced) for key, synced in present.items()}
    theirs: list[dict[_Key, tuple[int, ...]]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(theirs, mine)
    shared = set[_Key]()
    for key in theirs[0]:
        prints = [one.get(key, ()) for one in theirs]
        if len({one[:-1] for one in prints}) > 1:
            continue
        shared.add(key)
        synced = present[key]
        if len(set(prints)) > 1:
            synced.take_values()
        if isinstance(synced, Attachment):
            synced.share_buffers()
    return [synced for key, synced in present.items() if key not in shared]


def _by_label(registry: Registry) -> dict[_Key, Synced]:
    found: dict[_Key, Synced] = {}
    for synced in registry:
        if not synced.local and synced.values():
            number = sum(label == synced.label for label, _ in found)
            found[synced.label, number] = synced
    return found


def _fingerprint(synced: Synced) -> tuple[int, ...]:
    """Return its shape, and last what its values are."""
    return text_checksum("\n".join(synced.layout())), checksum(synced.values())
