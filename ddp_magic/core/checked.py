"""`%%ddp --check`: are all models and optimizers the same on all ranks, and if not, which first?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddp_magic.core.parts import grouped, of_groups, only_on
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

Checksums = Mapping[str, Mapping[str, str]]  # of each thing by its label, then of each part by name


@dataclass(frozen=True)
class Checked:
    """Checksums of what one rank holds as a cell ends.

    Attributes
    ----------
    models
        Of each attached model: its parameters and buffers.
    optimizers
        Of each optimizer that trains them: its options and state.
    """

    models: Checksums = field(default_factory=dict)
    optimizers: Checksums = field(default_factory=dict)


def first_difference(checked: Mapping[int, Checked]) -> str:
    """Return what differs between ranks, the first of it, as a sentence; ``""`` if nothing does."""
    models = _first({rank: one.models for rank, one in checked.items()})
    return models or _first({rank: one.optimizers for rank, one in checked.items()})


def advice(checked: Mapping[int, Checked]) -> str:
    """Return what is to be done about what differs first; ``""`` if it is no more than a drift."""
    model = _first({rank: one.models for rank, one in checked.items()})
    if not model:
        return _SAME_OPTIONS
    return _SAME_BUFFERS if f"{OF_BUFFER} is not" in model else ""


def confirmation(checked: Mapping[int, Checked]) -> str:
    """Return a line that says what was found to be the same on these ranks."""
    first = next(iter(checked.values()))
    labels = [*first.models, *first.optimizers]
    if not labels:
        return "--check: there was nothing to compare: no model has been attached"
    count = sum(len(parts) for some in (first.models, first.optimizers) for parts in some.values())
    ranks = named(sorted(checked))
    return f"--check: {', '.join(labels)}: {count:,} checksums, the same on {ranks}"


def _first(sums: Mapping[int, Checksums]) -> str:
    for label in dict.fromkeys(label for one in sums.values() for label in one):
        have = {rank: one[label] for rank, one in sorted(sums.items()) if label in one}
        if len(have) < len(sums):
            return f"{label} is {only_on(tuple(have))}"
        for name in dict.fromkeys(name for parts in have.values() for name in parts):
            found = {rank: parts.get(name) for rank, parts in have.items()}
            groups = grouped(found)
            if len(groups) > 1:
                alike = of_groups([ranks for ranks, _ in groups])
                return f"{label}: {name} is not the same on all ranks: {alike}"
    return ""
