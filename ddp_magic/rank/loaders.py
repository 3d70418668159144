"""`DataLoader`s divided among the ranks, in place."""

from __future__ import annotations

import ast
import math
import os
import sys
import weakref
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import wraps
from types import CodeType, FrameType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from executing import Source
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, IterDataPipe, MapDataPipe
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from ddp_magic.core.shards import Place
from ddp_magic.core.totals import totals
from ddp_magic.rank.datasets import describe, divides_by_rank
from ddp_magic.rank.frames import library_user
from ddp_magic.rank.indices import LoaderState, Pass, ShardedIndices
from ddp_magic.rank.patching import Patches
from ddp_magic.rank.reduction import Cut, sums_over_samples, weighs_samples
from ddp_magic.rank.report import Report
from ddp_magic.rank.seeding import worker_base_seed
from ddp_magic.rank.sharing import alike_on_all_ranks, generator_of_rank_0

Loader = DataLoader[Any]


@dataclass(frozen=True)
class PartCollate:
    """Collates this rank's part of each batch that a stream yields (runs in the workers too)."""

    collate_fn: Callable[[list[Any]], Any]
    plan: Pass

    def __call__(self, samples: list[Any]) -> Any:
        place = self.plan.place
        if self.plan.batch == "global":
            return self.collate_fn(samples[place.exact(len(samples))])
        return self.collate_fn([samples[position] for position in place.padded(len(samples))])


class Models(Protocol):
    """What a loader asks of the models that train."""

    def is_evaluating(self) -> bool:
        """Return whether the model that was last trained is in evaluation mode."""

    def has_optimizers(self) -> bool:
        """Return whether an optimizer trains them."""

    def normalise_batches(self) -> bool:
        """Return whether one normalises by the statistics of a batch, which one row has not."""

    def meet_at_loader(self) -> None:
        """See that every rank is about to read a loader."""


class _NoModels:
    def is_evaluating(self) -> bool:
        return False

    has_optimizers = normalise_batches = is_evaluating

    def meet_at_loader(self) -> None:
        pass


class LoaderSharder:
    """Divides the batches of every `DataLoader` that is iterated for training.

    Parameters
    ----------
    report
        Where the user is told.
    models
        What is known of the models that train.

    Attributes
    ----------
    shard
        False: loaders made or iterated now are left alone.
    batch
        ``"global"``: a loader's batch of B is cut into one part per rank, so that its length and
        the mathematics are those of one process; ``"per-rank"``: each rank gets batches of B.
    trainings
        How often training was seen in this process: an optimizer's step or, where there is no
        optimizer, a backward.
    backwards
        How often gradients were computed.
    divided
        How many iterations were divided so far.
    """

    def __init__(self, report: Report, models: Models | None = None) -> None:
        self.report = report
        self._models = models or _NoModels()
        self.shard = True
        self.batch = "global"
        self.trainings = self.backwards = 0
        self.divided = 0
        self._reads: list[tuple[weakref.ref[Any], int | None]] = []  # passes that began, and sizes
        self._states: MutableMapping[Loader, LoaderState] = WeakIdKeyDictionary()
        self._seen_loops: set[tuple[CodeType, int]] = set()
        self._unseen_cut: Cut | None = None  # a cut since which there was no backward
        self._patches = Patches()
        self._step_hook: RemovableHandle | None = None
        self._pid = os.getpid()

    def install(self) -> None:
        """Divide from now on. Loaders that exist already are divided when they are iterated."""
        self._pid = os.getpid()
        self._patches.replace(DataLoader, "__init__", self._make_init)
        self._patches.replace(DataLoader, "__iter__", self._make_iter)
        self._patches.replace(DataLoader, "__len__", self._make_len)
        self._patches.replace(DataLoader, "_index_sampler", self._make_index_sampler)
        self._patches.replace(_BaseDataLoaderIter, "__init__", self._make_iterator_init)
        self._patches.replace(torch.Tensor, "backward", self._make_backward)
        self._patches.replace(torch.autograd, "grad", self._make_grad)
        self._step_hook = register_optimizer_step_post_hook(self._stepped)

    def uninstall(self) -> None:
        """Leave torch's classes as they were before `install`."""
        self._patches.undo()
        if self._step_hook is not None:
            self._step_hook.remove()
            self._step_hook = None

    def on_new_group(self) -> None:
        """Forget what was agreed with ranks that may since have been replaced."""
        for state in self._states.values():
            state.trains, state.data_alike = False, None

    def record(self, packed: set[int]) -> list[dict[str, Any]]:
        """Return what another rank has to know, which has what has been ``packed`` (by ``id``)."""
        return [
            {"loader": loader, "alone": state.alone, "told": state.told}
            for loader, state in self._states.items()
            if id(loader) in packed
        ]

    def take_up(self, record: list[dict[str, Any]]) -> None:
        """Treat loaders as another rank does."""
        for one in record:
            self._states[one["loader"]] = LoaderState(alone=one["alone"], told=one["told"])

    def plan(self, state: LoaderState) -> Pass | None:
        """Return how an iteration that begins now is divided; None: not at all."""
        installed = self._step_hook is not None
        if state.alone or not (installed and self.shard and torch.is_grad_enabled()):
            return None
        in_worker = os.getpid() != self._pid
        if in_worker or not dist.is_initialized() or dist.get_world_size() == 1:
            return None
        least = 2 if self._models.normalise_batches() else 1
        return Pass(Place(dist.get_rank(), dist.get_world_size(), least), self.batch)

    def evaluates(self) -> bool:
        """Return whether the models are in evaluation mode."""
        return self._models.is_evaluating()

    def data_alike(self, state: LoaderState, dataset: Any) -> bool:
        """Return whether all ranks hold the same data (a collective, the first time)."""
        self._models.meet_at_loader()
        if state.data_alike is None:
            state.data_alike = alike_on_all_ranks(describe(dataset))
            state.alone = not state.data_alike
        if state.alone:
            self.report.notice(
                "loader-data-differs",
                f"The ranks hold different data ({type(dataset).__name__}): taken as divided by "
                "rank already, its loader is left alone.",
            )
        return state.data_alike

    def began(self, state: LoaderState, plan: Pass, batch_size: int | None) -> None:
        """Be told that a batch is divided."""
        self.divided += 1
        if not state.told:
            state.told = True
            self.report.did("loader", f"{_division(plan, batch_size)}, full under no_grad")
        self._tell_totals(sys._getframe(1))

    def _tell_totals(self, frame: FrameType) -> None:
        """Say which numbers of the loop that reads this loader will be this rank's share."""
        place = library_user(frame)
        if place is None or (key := (place.f_code, place.f_lineno)) in self._seen_loops:
            return
        self._seen_loops.add(key)
        executing = Source.executing(place)
        loops = [s for s in executing.statements or () if isinstance(s, ast.For)]
        names = [name for loop in loops for name in totals(loop, executing.source.tree)]
        if names:
            listed = ", ".join(f"`{name}`" for name in names)
            self.report.notice(
                f"loader-totals:{listed}",
                f"Line {place.f_lineno}: {listed} in this loop is of this rank's part of each "
                "batch. ddp.sum and ddp.mean, after the loop, give that of all ranks.",
            )

    def saw_cut(self, cut: Cut) -> None:
        """Be told the sizes of the first batch that an iteration cuts."""
        self._unseen_cut = cut

    def _stepped(self, *_: Any) -> None:
        self.trainings += 1

    def _make_backward(self, original: Any) -> Any:
        @wraps(original)
        def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            self._saw_gradients()
            if self._unseen_cut is not None:
                self._look_at(loss, self._unseen_cut)
                self._unseen_cut = None
            original(loss, *args, **kwargs)

        return backward

    def _make_grad(self, original: Any) -> Any:
        @wraps(original)
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            first = inputs if isinstance(inputs, torch.Tensor) else next(iter(inputs), None)
            if isinstance(first, torch.nn.Parameter):
                self._saw_gradients()
            return original(outputs, inputs, *args, **kwargs)

        return grad

    def _saw_gradients(self) -> None:
        self.backwards += 1
        self.trainings += not self._models.has_optimizers()

    def _look_at(self, loss: torch.Tensor, cut: Cut) -> None:
        if cut.part_size == cut.batch_size:
            return
        frame = library_user(sys._getframe(2))
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
        if weighs_samples(loss, cut):
            self.report.notice(
                f"loader-loss-weighs:{where}",
                "A loss is a mean in which samples count differently (class weights, ignore_index, "
                "a mask): each rank divides by the weights of its own part, so the step is near "
                "that of one process, not equal. Exact: the sum, divided by "
                "ddp.mean(weights.sum()).",
            )
        if sums_over_samples(loss, cut):
            self.report.notice(
                f"loader-loss-sums:{where}",
                "A loss is the sum over its batch, of which each rank has a part; averaged over "
                f"ranks, its gradient is {cut.part_size / cut.batch_size:g} of that in one "
                "process. Use the mean (reduction='mean'), or multiply the loss by world_size.",
            )

    def _make_init(self, original: Any) -> Any:
        @wraps(original)
        def __init__(loader: Loader, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            if not self.shard:
                self._states[loader] = LoaderState(alone=True)

        return __init__

    def _make_iter(self, original: Any) -> Any:
        @wraps(original)
        def __iter__(loader: Loader) -> Any:
            if _is_stream(loader):
                return self._iterate_stream(loader, original)
            return original(loader)

        return __iter__

    def _make_len(self, original: Any) -> Any:
        @wraps(original)
        def __len__(loader: Loader) -> int:
            length: int = original(loader)
            plan = self._stream_plan(loader) if _is_stream(loader) else None
            if plan is None or plan.batch == "global":
                return length
            batches = length / plan.place.world_size
            return math.floor(batches) if loader.drop_last else math.ceil(batches)

        return __len__

    def _make_index_sampler(self, original: property) -> property:
        def _index_sampler(loader: Loader) -> Any:
            inner = original.fget(loader)  # type: ignore[misc]
            if _is_stream(loader):
                return self._stream_indices(loader, inner)
            lookahead = loader.num_workers * (loader.prefetch_factor or 0)
            batched = loader._auto_collation or type(inner) is BatchSampler
            return ShardedIndices(
                inner, loader.dataset, batched, lookahead, self._state(loader), self
            )

        return property(_index_sampler, doc=original.__doc__)

    def _make_iterator_init(self, original: Any) -> Any:
        @wraps(original)
        def __init__(iterator: Any, loader: Loader) -> None:
            original(iterator, loader)
            self._note_pass(iterator, loader)
            indices = iterator._index_sampler
            plan = self.plan(indices.state) if isinstance(indices, ShardedIndices) else None
            if plan is not None:
                iterator._base_seed = worker_base_seed(
                    iterator._base_seed, plan.place.rank, loader.num_workers
                )

        return __init__

    def _note_pass(self, iterator: Any, loader: Loader) -> None:
        if torch.is_grad_enabled() and os.getpid() == self._pid:
            self._reads = [pair for pair in self._reads if pair[0]() is not None]
            self._reads.append((weakref.ref(iterator), _batch_size(loader)))

    def progress(self) -> dict[str, int | None]:
        """Return how far the pass that began last has come; may be called on any thread.

        Returns
        -------
        dict
            ``position`` and ``length`` in batches, and ``batch``: samples of one, on all ranks
            together. None where that is not known.
        """
        for reference, size in reversed(self._reads):
            if (iterator := reference()) is not None:
                ranks = dist.get_world_size() if self.batch == "per-rank" else 1
                known = {"position": iterator._num_yielded, "length": _length(iterator)}
                return {**known, "batch": size * ranks if size else None}
        return {"position": None, "length": None, "batch": None}

    def _state(self, loader: Loader) -> LoaderState:
        state = self._states.get(loader)
        if state is None:
            state = self._states[loader] = LoaderState(alone=self._is_alone(loader))
        return state

    def _is_alone(self, loader: Loader) -> bool:
        dataset = loader.dataset
        if isinstance(dataset, (IterDataPipe, MapDataPipe)):  # torch divides these itself
            return True
        if divides_by_rank(dataset):
            self.report.notice(
                "loader-divides-itself",
                f"{type(dataset).__name__} divides its data by rank itself: its loader is left "
                "alone.",
            )
            return True
        return divides_by_rank(loader)

    def _stream_plan(self, loader: Loader) -> Pass | None:
        plan = self.plan(self._state(loader))
        if plan is None or loader.batch_size is not None:
            return plan
        self.report.notice(
            "loader-stream-uncut",
            "An IterableDataset with batch_size=None yields whole items that cannot be cut: every "
            "rank gets all of them (right, but no faster). Let its __iter__ yield every "
            "world_size-th item, from the rank-th on, to divide it.",
        )
        return None

    def _stream_indices(self, loader: Loader, inner: Any) -> Any:
        plan = self._stream_plan(loader)
        if plan is None or plan.batch == "global":
            return inner
        size = inner.batch_size * plan.place.world_size
        return BatchSampler(inner.sampler, size, inner.drop_last)

    def _iterate_stream(self, loader: Loader, original: Any) -> Any:
        """Let every rank read the whole stream, and collate only its own part of each batch.

        Only so do the ranks get what one process gets, in the same number of batches. Their
        workers' seeds must agree, as the streams must.
        """
        state, plan, size = self._state(loader), self._stream_plan(loader), loader.batch_size
        if state.cut != plan:
            loader._iterator = None  # its workers make another cut
            state.cut = plan
        if plan is None or size is None:
            return original(loader)
        self.began(state, plan, size)
        if plan.batch == "global":
            self.saw_cut(Cut(size // plan.place.parts(size), size))
        collate_fn = loader.collate_fn
        loader.collate_fn = PartCollate(collate_fn, plan)
        try:
            with generator_of_rank_0(loader.generator or torch.default_generator):
                return original(loader)
        finally:
            loader.collate_fn = collate_fn


def _batch_size(loader: Loader) -> int | None:
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def _length(iterator: Any) -> int | None:
    indices = iterator._index_sampler
    inner = indices.inner if isinstance(indices, ShardedIndices) else indices
    return len(indices) if isinstance(inner, BatchSampler) else None


def _is_stream(loader: Loader) -> bool:
    return isinstance(loader.dataset, IterableDataset)


def _division(plan: Pass, batch_size: int | None) -> str:
    place = plan.place
    if batch_size is None:
        return f"each batch → {place.world_size} parts" if plan.batch == "global" else "items dealt"
    if plan.batch == "per-rank":
        return f"batch {batch_size} per rank = {batch_size * place.world_size}"
    parts = place.parts(batch_size)
    text = f"batch {batch_size} → {parts} × {batch_size // parts}"  # noqa: RUF001
    return text if parts == place.world_size else f"{text} on {place.world_size} ranks"
