"""The indices that a sharded loader draws: the same on all ranks, of which each takes its part."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Protocol

import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ddp_magic.core.shards import Place
from ddp_magic.rank.reduction import Cut
from ddp_magic.rank.report import Report
from ddp_magic.rank.sharing import drawn_by_rank_0, generator_of_rank_0

_END: Final = object()


class Order(Enum):
    """What the order of a sampler's indices depends on."""

    FIXED = auto()  # nothing
    SEEDED = auto()  # torch's generator, at the first draw alone
    OWN = auto()  # whatever the user's code does


def base_sampler(sampler: Any) -> Any:
    """Return the sampler of single indices within torch's own `BatchSampler`."""
    while type(sampler) is BatchSampler:
        sampler = sampler.sampler
    return sampler


def order_of(sampler: Any) -> Order:
    """Return what the sampler's order depends on; only torch's own classes are known."""
    kind = type(base_sampler(sampler))
    if kind in (SequentialSampler, list, tuple, range):
        return Order.FIXED
    if kind in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler):
        return Order.SEEDED
    return Order.OWN


@dataclass(frozen=True)
class Pass:
    """How one iteration over a loader is divided.

    Attributes
    ----------
    place
        This rank among those that iterate.
    batch
        ``"global"``: a batch is cut into parts; ``"per-rank"``: each rank gets batches of its own.
    """

    place: Place
    batch: str


@dataclass
class LoaderState:
    """What is remembered of a loader between iterations.

    Attributes
    ----------
    alone
        Left as it is: its data are divided by rank already, or it was made under ``--no-shard``.
    trains
        Training happened between its batches.
    data_alike
        Whether all ranks hold the same data; None: not compared yet.
    told
        The user knows how it is divided.
    cut
        The cut that a stream's live workers make.
    """

    alone: bool = False
    trains: bool = False
    data_alike: bool | None = None
    told: bool = False
    cut: Pass | None = None


class Owner(Protocol):
    """What the indices ask of the one who owns them."""

    report: Report
    trainings: int  # how often training has happened so far in this process
    backwards: int  # how often gradients were computed

    def plan(self, state: LoaderState) -> Pass | None:
        """Return how an iteration that begins now is divided; None: not at all."""

    def evaluates(self) -> bool:
        """Return whether the models are in evaluation mode."""

    def data_alike(self, state: LoaderState, dataset: Any) -> bool:
        """Return whether all ranks hold the same data (a collective, the first time)."""

    def began(self, state: LoaderState, plan: Pass, batch_size: int | None) -> None:
        """Be told that a batch is divided."""

    def saw_cut(self, cut: Cut) -> None:
        """Be told the sizes of the first batch that an iteration cuts."""


@dataclass
class ShardedIndices:
    """Stands where a loader keeps its sampler of batches; divides what that yields, or does not.

    Each iteration decides anew. Undivided, it is the user's sampler and no more. It holds no
    reference to the loader, whose workers would else outlive it.

    Attributes
    ----------
    inner
        The user's sampler of batches, or of items where the loader makes no batches.
    batched
        Whether an index is a batch of sample indices.
    lookahead
        How many batches workers draw before the first is trained on.
    """

    inner: Any
    dataset: Any
    batched: bool
    lookahead: int
    state: LoaderState
    owner: Owner

    def __iter__(self) -> Iterator[Any]:
        plan = self.owner.plan(self.state)
        if plan is None:
            return iter(self.inner)
        indices = iter(self._source(plan))  # now: a sampler may draw its random numbers here
        return self._indices(plan, indices)

    def __len__(self) -> int:
        plan = self.owner.plan(self.state)
        if plan is None or plan.batch == "global":
            return len(self.inner)
        if self._is_torch_batches:
            return len(self._source(plan))
        return math.ceil(len(self.inner) / plan.place.world_size)

    @property
    def _is_torch_batches(self) -> bool:
        return type(self.inner) is BatchSampler

    def _source(self, plan: Pass) -> Any:
        """Return the sampler to draw from: per rank, torch's own draws for all ranks at once."""
        if plan.batch == "per-rank" and self._is_torch_batches:
            size = self.inner.batch_size * plan.place.world_size
            return BatchSampler(self.inner.sampler, size, self.inner.drop_last)
        return self.inner

    def _indices(self, plan: Pass, indices: Iterator[Any]) -> Iterator[Any]:
        order = order_of(self.inner)
        evaluates = order is Order.FIXED or self.owner.evaluates()
        if evaluates and plan.batch == "global" and not self.state.trains:
            return (yield from self._once_it_trains(plan, self._agreed(order, indices)))
        if not self.owner.data_alike(self.state, self.dataset):
            return (yield from self.inner)
        yield from self._checked(plan, self._agreed(order, indices))

    def _once_it_trains(self, plan: Pass, indices: Iterator[Any]) -> Iterator[Any]:
        """Divide from the batch on before which training happened.

        Unshuffled data is as a rule evaluated, with or without ``no_grad``, and so is what meets
        models in evaluation mode: a rank that sums up only its part gets it wrong. Whole batches
        are right in training as well, only slower.
        """
        start = self.owner.trainings
        for batch in indices:
            if self.owner.trainings == start:
                yield batch
                continue
            self.state.trains = True
            rest = _chain(batch, indices)
            alike = self.owner.data_alike(self.state, self.dataset)
            yield from self._parts(plan, rest) if alike else rest

    def _agreed(self, order: Order, indices: Iterator[Any]) -> Iterator[Any]:
        """Yield the same indices on all ranks, though their random numbers may have drifted."""
        if order is Order.FIXED:
            yield from indices
        elif order is Order.OWN:
            yield from drawn_by_rank_0(indices)
        else:
            generator = getattr(base_sampler(self.inner), "generator", None)
            with generator_of_rank_0(generator or torch.default_generator):
                first = next(indices, _END)
            if first is not _END:
                yield from _chain(first, indices)

    def _checked(self, plan: Pass, batches: Iterator[Any]) -> Iterator[Any]:
        """Divide, and say so if the loop, now at its end, trained nothing."""
        start = self._seen()
        count = 0
        for part in self._parts(plan, batches):
            count += 1
            yield part
        if count > self.lookahead and self._seen() == start:
            self.owner.report.notice(
                "loader-not-trained",
                "A loader was read to its end with gradients on and nothing was trained: each rank "
                "saw its own part of the data, so what the loop sums up is this rank's share. "
                "Under torch.no_grad() every rank gets all of it; ddp.sum and ddp.mean add up "
                "shares.",
            )

    def _seen(self) -> tuple[int, int]:
        return self.owner.trainings, self.owner.backwards

    def _parts(self, plan: Pass, batches: Iterator[Any]) -> Iterator[Any]:
        if self.batched or plan.batch == "per-rank":
            self.owner.began(self.state, plan, getattr(self.inner, "batch_size", None))
        if plan.batch == "global":
            return self._exact_parts(plan.place, batches)
        if self._is_torch_batches:
            return (_pick(batch, plan.place.padded(len(batch))) for batch in batches)
        return plan.place.deal(batches)

    def _exact_parts(self, place: Place, batches: Iterator[Any]) -> Iterator[Any]:
        uneven = 0  # the size of a batch that did not divide; the last one may be any size
        for number, batch in enumerate(batches):
            if uneven:
                self._say_uneven(uneven, place)
                uneven = 0
            if not (self.batched or isinstance(batch, list)):
                self._say_uncut()
                yield batch
                continue
            rows = _sliceable(batch)
            size = len(rows)
            if size % place.world_size:
                uneven = size
            if number == 0:
                self.owner.saw_cut(Cut(size // place.parts(size), size))
            yield rows[place.exact(size)]

    def _say_uneven(self, size: int, place: Place) -> None:
        parts, world_size = place.parts(size), place.world_size
        held = (
            "every rank has all of it" if parts == 1 else f"it is {parts} parts of {size // parts}"
        )
        least = size - size % world_size or world_size
        self.owner.report.notice(
            "loader-uneven",
            f"A batch of {size} does not divide by {world_size} ranks: {held}, so that the mean "
            f"stays that of one process. {least} or {least + world_size} use all ranks fully; "
            "`--batch per-rank` gives each rank batches of its own.",
        )

    def _say_uncut(self) -> None:
        self.owner.report.notice(
            "loader-uncut",
            "A loader with batch_size=None yields whole items that cannot be cut: every rank gets "
            "all of them (right, but no faster). `--batch per-rank` deals them out.",
        )


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _sliceable(batch: Iterable[Any]) -> Any:
    has_order = hasattr(batch, "__getitem__") and hasattr(batch, "__len__")
    return batch if has_order and not isinstance(batch, Mapping) else list(batch)


def _pick(batch: list[Any], positions: list[int]) -> list[Any]:
    return [batch[position] for position in positions]
