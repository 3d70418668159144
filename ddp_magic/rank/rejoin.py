"""Bring the ranks together again after they did not all run the same cells."""

from __future__ import annotations

import torch.distributed as dist

from ddp_magic.rank.agreement import checksum, text_checksum
from ddp_magic.rank.attachment import Attachment
from ddp_magic.rank.registry import Registry, Synced

_Key = tuple[int, int]  # the round in which all ranks agreed on it


def rejoin(registry: Registry) -> list[Synced]:
    """Give all ranks rank 0's values of what all of them have; a collective.

    Labels do not tell what that is: one rank may still hold, in a traceback or in a variable of
    its own, a model whose name has another one now.

    Returns
    -------
        What some rank lacks, or has in another shape.
    """
    present = {one.agreed: one for one in registry if one.agreed and not one.local and one.values()}
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
    kept = [id(present[key]) for key in shared]
    return [one for one in registry if not one.local and one.values() and id(one) not in kept]


def _fingerprint(synced: Synced) -> tuple[int, ...]:
    """Return its shape, and last what its values are."""
    return text_checksum("\n".join(synced.layout())), checksum(synced.values())
