"""What is known of one cell on its ranks, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ddp_magic.core.checked import Checked, advice, first_difference
from ddp_magic.core.failures import FailureStory, RankFailure, way_back
from ddp_magic.core.ranks import named
from ddp_magic.core.witness import Attested, Closing, disagreement
from ddp_magic.errors import CellError, DdpMagicError, ParityError

_STORE_ERROR = "DistStoreError"  # torch's: what the ranks share has not been written, or in part
_IN_PAIRS = ("recv", "send")  # not every rank makes those
_SAME_STEPS = (
    "All ranks have to make the same steps, and to call what the others wait in: not only some, as "
    "under `if rank == 0:`. What a rank decides by its own loss or data takes them apart, too: "
    "ddp.mean(loss) is the same on all."
)
_SAME_VALUES = (
    "The next cell begins with rank 0's values on every rank. What a rank decides by its own loss "
    "or data takes ranks apart: ddp.mean(loss) is the same on all. A cell that is not to be kept "
    "in step takes -r or --no-wrap."
)


@dataclass
class CellRecord:
    """Of one cell, as far as it has come.

    Attributes
    ----------
    ranks
        Those that run it, ascending.
    failures
        What ended it on a rank.
    died
        How each rank whose process has ended did so.
    closings
        What each rank said as it ended the cell.
    places
        Where those were that had to be interrupted.
    in_vain
        Where each rank that waited for what could not come did so, until it was freed.
    clash
        How the collectives of those did not match; or ``""``.
    has_freed
        Whether the process group's connections were ended.
    """

    ranks: tuple[int, ...]
    failures: dict[int, RankFailure] = field(default_factory=dict)
    died: dict[int, str] = field(default_factory=dict)
    closings: dict[int, Closing] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)
    in_vain: dict[int, str] = field(default_factory=dict)
    clash: str = ""
    has_freed: bool = False

    @property
    def attested(self) -> dict[int, Attested]:
        """What ranks attest of what they did."""
        return {rank: one.attested for rank, one in self.closings.items() if one.attested}

    @property
    def checked(self) -> dict[int, Checked]:
        """The checksums of all models, if the cell was to be checked; empty unless all came."""
        found = {rank: one.checked for rank, one in self.closings.items() if one.checked}
        return found if found.keys() == set(self.ranks) else {}

    def story(self, busy: tuple[int, ...]) -> FailureStory:
        """Return what has happened to each rank, those that are ``busy`` still included."""
        ended = {*self.failures, *self.died, *busy}
        unmet = {rank: one.unmet for rank, one in sorted(self.closings.items()) if one.unmet}
        clashes = [
            one.clash.rstrip(".")
            for rank, one in self.closings.items()
            if one.clash and rank not in self.failures
        ]
        return FailureStory(
            dict(self.failures),
            tuple(rank for rank in self.ranks if rank not in ended),
            dict(self.died),
            busy,
            freed={**unmet, **self.in_vain},
            places=dict(self.places),
            clash=self.clash or next(iter(clashes), ""),
        )

    def is_over(self, replied: Iterable[int]) -> bool:
        """Whether the cell cannot succeed any more.

        Parameters
        ----------
        replied
            Ranks that have ended it.
        """
        misses = any(one.unmet or one.clash for one in self.closings.values())
        failed = not self.failures.keys().isdisjoint(replied)
        return bool(failed or misses or self.died or self.has_freed)

    def errors(self) -> dict[int, str]:
        """Return what each rank failed with, empty where it did not."""
        story = self.story(())
        own = {rank: one for rank, one in self.failures.items() if story.is_told(one)}
        return {rank: own[rank].headline if rank in own else "" for rank in self.ranks}

    @property
    def disagreement(self) -> str:
        """What the ranks disagree on, now that they have ended; or ``""``."""
        return disagreement(self.attested) if self.attested.keys() == set(self.ranks) else ""

    @property
    def group_is_broken(self) -> bool:
        """Whether the ranks' process group must be made anew before they can use it again."""
        counts = {one.collectives for one in self.attested.values()} - {None}
        half_written = any(one.name == _STORE_ERROR for one in self.failures.values())
        return self.has_freed or len(counts) > 1 or half_written

    def way_back(self, all_ranks: Iterable[int]) -> str:
        """Return what brings back those that have died; ``""`` if none has."""
        return f"{way_back(self.died, all_ranks)}." if self.died else ""

    def error(self, busy: tuple[int, ...], all_ranks: Iterable[int]) -> DdpMagicError | None:
        """Return what is raised of the cell, if it has failed.

        Parameters
        ----------
        all_ranks
            Those of the session.
        """
        if self.failures or self.is_over(self.ranks):
            story = self.story(busy)
            if self.died:
                return CellError(story, fix=self.way_back(all_ranks))
            told = story.first is not None and story.is_told(story.first)
            in_pairs = any(where.startswith(_IN_PAIRS) for where in story.freed.values())
            apart = story.freed and not (story.clash or told or in_pairs)
            alone = set(self.ranks) != set(all_ranks)
            fix = f"The cell runs on {named(self.ranks)} alone." if alone else _SAME_STEPS
            return CellError(story, fix=fix if apart else "")
        if different := first_difference(self.checked):
            return ParityError(f"{different}.", fix=advice(self.checked) or _SAME_VALUES)
        if self.disagreement:
            return ParityError(f"{self.disagreement}.", fix=_SAME_VALUES)
        return None
