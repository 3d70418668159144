"""`%%ddp --check`: are all models and optimizers the same on all ranks, and if not, which first?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddp_magic.core.parts import grouped, of_groups
from ddp_magic.core.ranks import named

OF_BUFFER = " (buffer)"  # stands after a buffer's name
_SAME_BUFFERS = (
    "Buffers get rank 0's values after each backward. A forward in training mode that none follows "
    "changes those of a BatchNorm on each rank: call model.eval() before it."
)
_SAME_OPTIONS = (
    "Options of an optimizer, such as lr, have to be set alike on all ranks; its state is the same "
    "where all ranks have made the same steps."
)

Checksums = Mapping[str, Mapping[str, str]]  # of each thing by its key, then of each part by name


@dataclass(frozen=True)
class Checked:
    """Checksums of what one rank holds as a cell ends.

    A key is of the same thing on all ranks. What only some hold is compared with nothing: the
    others have let go of it, as of a model that has been replaced and a traceback keeps.

    Attributes
    ----------
    models
        Of each attached model: its parameters and buffers.
    optimizers
        Of each optimizer that trains them: its options and state.
    labels
        What a thing is called, by its key, if that is not the key itself.
    """

    models: Checksums = field(default_factory=dict)
    optimizers: Checksums = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def first_difference(checked: Mapping[int, Checked]) -> str:
    """Return what differs between ranks, the first of it, as a sentence; ``""`` if nothing does."""
    labels = _labels(checked)
    models = _first({rank: one.models for rank, one in checked.items()}, labels)
    return models or _first({rank: one.optimizers for rank, one in checked.items()}, labels)


def advice(checked: Mapping[int, Checked]) -> str:
    """Return what is to be done about what differs first; ``""`` if it is no more than a drift."""
    model = _first({rank: one.models for rank, one in checked.items()}, _labels(checked))
    if not model:
        return _SAME_OPTIONS
    return _SAME_BUFFERS if f"{OF_BUFFER} is not" in model else ""


def confirmation(checked: Mapping[int, Checked]) -> str:
    """Return a line that says what was found to be the same on these ranks."""
    models = _common([one.models for one in checked.values()])
    optimizers = _common([one.optimizers for one in checked.values()])
    compared = {**models, **optimizers}
    if not compared:
        return "--check: there was nothing to compare: no model has been attached"
    labels = _labels(checked)
    told = ", ".join(labels.get(key, key) for key in compared)
    count = sum(map(len, compared.values()))
    sums = "1 checksum" if count == 1 else f"{count:,} checksums"
    return f"--check: {told}: {sums}, the same on {named(sorted(checked))}"


def _labels(checked: Mapping[int, Checked]) -> dict[str, str]:
    return {key: label for one in checked.values() for key, label in one.labels.items()}


def _common(sums: Sequence[Checksums]) -> Checksums:
    """Return the first of these, without what another lacks."""
    first = next(iter(sums), {})
    return {key: parts for key, parts in first.items() if all(key in one for one in sums)}


def _first(sums: Mapping[int, Checksums], labels: Mapping[str, str]) -> str:
    for key in _common(list(sums.values())):
        have = {rank: one[key] for rank, one in sorted(sums.items())}
        label = labels.get(key, key)
        for name in dict.fromkeys(name for parts in have.values() for name in parts):
            found = {rank: parts.get(name) for rank, parts in have.items()}
            groups = grouped(found)
            if len(groups) > 1:
                alike = of_groups([ranks for ranks, _ in groups])
                return f"{label}: {name} is not the same on all ranks: {alike}"
    return ""
