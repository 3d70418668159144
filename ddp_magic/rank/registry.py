"""What is attached on this rank, and what is left to the user."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddp_magic.rank.agreement import checksum
from ddp_magic.rank.attachment import Attachment, can_train, takes_statistics
from ddp_magic.rank.buffers import parts
from ddp_magic.rank.loose import LooseTensors
from ddp_magic.rank.owners import (
    Surroundings,
    find_owners,
    is_managed,
    look_around,
    managed_parameters,
)
from ddp_magic.rank.report import Report
from ddp_magic.rank.rounds import Rounds

Synced: TypeAlias = Attachment | LooseTensors


class Registry:
    """The models and tensors that are kept in step, each in one `Attachment` or `LooseTensors`.

    An attachment lives as long as a module of its model; nothing here keeps a model alive.
    Iterating gives all of them, in the order in which they were marked, the same on all ranks.
    """

    def __init__(self, rounds: Rounds, report: Report) -> None:
        self._rounds = rounds
        self._report = report
        self._by_root: weakref.WeakKeyDictionary[nn.Module, Attachment] = (
            weakref.WeakKeyDictionary()
        )
        self._attachments: list[weakref.ref[Attachment]] = []
        self._loose: list[LooseTensors] = []
        self._checked: weakref.WeakKeyDictionary[Synced, int] = weakref.WeakKeyDictionary()
        self.user_ddps: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._order: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._ddps_made = 0
        self._versions: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()

    def __iter__(self) -> Iterator[Synced]:
        for reference in self._attachments:
            attachment = reference()
            if attachment is not None:
                yield attachment
        yield from self._loose

    def mark(self, tensors: Iterable[Tensor], frame: FrameType | None) -> list[Synced]:
        """Attach what is trained by training these tensors; return what was not attached before.

        Modules met together are averaged together: on a rank that uses one of them and not
        another, the other takes part in the reduction all the same.

        Parameters
        ----------
        tensors
            Leaf tensors, given to an optimizer or reached by a backward.
        frame
            Where the user's code is: the owners are sought from there.
        """
        unknown = self._unknown(tensors)
        if not unknown:
            return []
        around = look_around(frame)
        owners = find_owners({id(tensor) for tensor in unknown}, around)
        attached: list[Synced] = [self.attach(owners)] if owners else []
        bare = self._unknown(unknown)
        if bare and not _has_shards(around):
            attached += self._add_loose(bare, around)
        return attached

    def attach(self, named_roots: Sequence[tuple[str, nn.Module]]) -> Attachment:
        """Return the one attachment of these modules, with all of their present parameters."""
        identities = {id(p) for _, root in named_roots for p in root.parameters()}
        shared = self._that_cover(identities)
        for _, root in named_roots:
            known = self._by_root.get(root)
            if known is not None and known not in shared:
                shared.append(known)
        first, *others = shared or [self._add(Attachment(named_roots, self._rounds, self._report))]
        named = [*named_roots, *(pair for other in others for pair in other.named_roots())]
        for other in others:
            other.release()
        if shared:
            first.adopt(named)
        for _, root in named:
            self._by_root[root] = first
        return first

    def _add(self, attachment: Attachment) -> Attachment:
        self._attachments = [ref for ref in self._attachments if ref() is not None]
        self._attachments.append(weakref.ref(attachment))
        return attachment

    @property
    def is_evaluating(self) -> bool:
        """Whether the model that was last trained (or all, before any was) is being evaluated."""
        roots = [root for attachment in self._latest() for root in attachment.roots()]
        return bool(roots) and not any(root.training for root in roots)

    @property
    def normalises_batches(self) -> bool:
        """Whether a model in training takes statistics of its batches."""
        attached = [one for one in self if isinstance(one, Attachment) and not one.local]
        roots = [root for attachment in attached for root in attachment.roots()]
        return any(takes_statistics(part) for part in parts(roots))

    def _latest(self) -> list[Attachment]:
        attached = [one for one in self if isinstance(one, Attachment) and not one.local]
        trained = [one for one in attached if one.reduces]
        return [max(trained, key=lambda one: one.reduced_at)] if trained else attached

    def record(self, packed: set[int]) -> dict[str, Any]:
        """Return what another rank has to know, which has what has been ``packed`` (by ``id``)."""

        def comes(things: Iterable[Any]) -> bool:
            return all(id(thing) in packed for thing in things)

        synced = [one for one in self if not one.local]
        models = [one for one in synced if isinstance(one, Attachment) and comes(one.roots())]
        loose = [one for one in synced if isinstance(one, LooseTensors) and comes(one.values())]
        return {
            "models": [one.record() for one in models if one.roots()],
            "loose": [one.record() for one in loose if one.values()],
            "ddps": [(self._order[ddp], ddp) for ddp in self.ordered_ddps() if id(ddp) in packed],
            "ddps_made": self._ddps_made,
        }

    def take_up(self, record: dict[str, Any]) -> None:
        """Mark what another rank has marked, in the same order."""
        models = [(self.attach(one["named_roots"]), one) for one in record["models"]]
        for attachment, one in sorted(models, key=lambda pair: pair[1]["reduced_at"]):
            attachment.take_up(one)
        for one in record["loose"]:
            self._loose.append(LooseTensors(one["named"], self._rounds, self._report))
            self._loose[-1].take_up(one)
        for number, ddp in record["ddps"]:
            self._ddps_made = number
            self.leave(ddp)
        self._ddps_made = record["ddps_made"]
        self.managed_checksums(summed=False)
        for synced in self:
            self._checked[synced] = synced.reduces + synced.asked

    def ordered_ddps(self) -> list[DistributedDataParallel]:
        """Return the user's own DDP objects in the order in which they were made."""
        return sorted(self.user_ddps, key=lambda one: self._order[one])

    def labelled_ddps(self) -> list[tuple[str, DistributedDataParallel]]:
        """Return them with labels: those of one label were made together.

        Of all that were ever made, for one rank may hold what another has let go of, as a traceback
        does.
        """
        return [
            (f"DDP({type(ddp.module).__name__}) number {self._order[ddp] + 1}", ddp)
            for ddp in self.ordered_ddps()
        ]

    def leave(self, ddp: DistributedDataParallel) -> list[Synced]:
        """Leave the parameters of a DDP that the user made to it; return what had them."""
        self.user_ddps.add(ddp)
        self._order[ddp] = self._ddps_made
        self._ddps_made += 1
        identities = {id(parameter) for parameter in ddp.parameters()}
        left = self._that_cover(identities)
        for attachment in left:
            attachment.release()
            for root in attachment.roots():
                self._by_root.pop(root, None)
        return list(left)

    def trained_checksums(self) -> dict[str, int]:
        """Return a checksum of each model that was trained since the last call, by label."""
        sums: dict[str, int] = {}
        for synced in self:
            if not synced.local:
                trained = synced.reduces + synced.asked
                if trained != self._checked.get(synced, 0):
                    sums[synced.label] = checksum(synced.values())
                self._checked[synced] = trained
        return sums

    def managed_checksums(self, summed: bool = True) -> dict[str, int]:
        """Return a checksum of each DDP of the user's whose parameters were written since.

        If they are not to be ``summed``, what was written is no news later.
        """
        sums: dict[str, int] = {}
        for label, ddp in self.labelled_ddps():
            parameters = list(ddp.parameters())
            version = sum(parameter._version for parameter in parameters)
            if version != self._versions.get(ddp) and summed:
                sums[label] = checksum(parameters)
            self._versions[ddp] = version
        return sums

    def forget_local(self) -> list[Synced]:
        """Let what is on this rank alone be marked anew; return what there was."""
        local = [synced for synced in self if synced.local]
        self.forget(local)
        return local

    def forget(self, some: Sequence[Synced]) -> None:
        """Let these be marked anew."""
        if not some:
            return
        gone = set(map(id, some))
        for synced in some:
            synced.release()
        for root, attachment in list(self._by_root.items()):
            if id(attachment) in gone:
                del self._by_root[root]
        self._attachments = [r for r in self._attachments if id(r()) not in gone]
        self._loose = [loose for loose in self._loose if id(loose) not in gone]

    def clear(self) -> None:
        """Take everything off all models and tensors."""
        for synced in self:
            synced.release()
        self._by_root.clear()
        self._attachments.clear()
        self._loose.clear()

    def _unknown(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        present = list(self)
        managed = managed_parameters(list(self.user_ddps))
        return [
            tensor
            for tensor in tensors
            if id(tensor) not in managed
            and not any(synced.covers(id(tensor)) for synced in present)
        ]

    def _that_cover(self, identities: set[int]) -> list[Attachment]:
        return [
            synced
            for synced in self
            if isinstance(synced, Attachment) and any(map(synced.covers, identities))
        ]

    def _add_loose(self, tensors: Sequence[Tensor], around: Surroundings) -> list[LooseTensors]:
        self._loose = [loose for loose in self._loose if loose.values()]
        parameters = [t for t in tensors if isinstance(t, nn.Parameter) and can_train(t)]
        plain = [t for t in tensors if not isinstance(t, nn.Parameter) and can_train(t)]
        added = [
            LooseTensors(
                [(around.tensors.get(id(t), "a tensor"), t) for t in some],
                self._rounds,
                self._report,
            )
            for some in (parameters, plain)
            if some
        ]
        self._loose += added
        return added


def _has_shards(around: Surroundings) -> bool:
    """Tell whether FSDP is at work, whose gathered parameters are leaves of its own."""
    return any(
        is_managed(part) and not isinstance(part, DistributedDataParallel)
        for _, module in around.modules.values()
        for part in module.modules()
    )
