"""What a rank attests as a cell ends: that it is where the others are.

Every rank has made as many collectives, and holds the same values of what it trained. The notebook
compares (`ddp_magic.core.witness`), so this takes no collective.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddp_magic.rank.attach import Attacher
from ddp_magic.rank.patching import Patches

_POINT_TO_POINT = ("send", "recv", "isend", "irecv")


class Witness:
    """Attests the end of each cell.

    Parameters
    ----------
    attacher
        Knows what was trained.

    Attributes
    ----------
    pairs
        Whether some ranks have talked to some in this cell: the group counts that as well.
    """

    def __init__(self, attacher: Attacher) -> None:
        self._attacher = attacher
        self._patches = Patches()
        self._before = 0
        self.pairs = False

    def install(self) -> None:
        """Note from now on whether ranks send to each other."""
        for name in _POINT_TO_POINT:
            self._patches.replace_in((dist, distributed_c10d), name, self._noting)

    def begin_cell(self) -> None:
        """Count from now on."""
        self.pairs = False
        self._before = self.collectives()

    def uninstall(self) -> None:
        """Give torch its functions back."""
        self._patches.undo()

    def attest(self, *, trained: bool) -> dict[str, Any]:
        """Return what must be the same on all ranks (see `ddp_magic.core.witness.Attested`)."""
        return {
            "collectives": None if self.pairs else self.collectives() - self._before,
            "trained": self._attacher.trained_checksums() if trained else {},
            "managed": self._attacher.managed_checksums(summed=trained),
        }

    def collectives(self) -> int:
        """Return how many collectives the process group has begun, sends and receives included."""
        group = dist.group.WORLD
        if group is None:
            return 0
        count: int = group._get_sequence_number_for_group()  # type: ignore[attr-defined]
        return count

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.pairs = True
            return original(*args, **kwargs)

        return call
