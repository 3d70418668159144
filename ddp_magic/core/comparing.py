"""Is a value the same on all ranks, and if not, where and by how much?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ddp_magic.core.difference import Difference, Distance, PartDifference
from ddp_magic.core.parts import BLOCK, Part, Path, each, grouped, only_on, shown

_BLOCKS = 32  # of tensors that differ, fetched from each rank: some 8 MiB
_FACETS = ("length", "shape", "dtype", "device", "requires_grad")
_DIGEST_BYTES = 8


def compare(name: str, told: Mapping[int, Sequence[Part] | None]) -> Difference:
    """Compare the parts that ranks told of one variable; None: there is no such one on a rank."""
    ranks = tuple(sorted(told))
    signatures = {
        rank: None if parts is None else _signature(parts) for rank, parts in told.items()
    }
    groups = tuple(alike for alike, _ in grouped(signatures))
    by_path = {rank: {part.path: part for part in parts or ()} for rank, parts in told.items()}
    paths = dict.fromkeys(path for parts in by_path.values() for path in parts)
    found = tuple(_differences(paths, by_path)) if len(groups) > 1 else ()
    everything = [part for parts in by_path.values() for part in parts.values()]
    return Difference(
        name=name,
        ranks=ranks,
        groups=groups,
        parts=found,
        compared=len(paths),
        what=_what(by_path[ranks[0]]) if ranks else "",
        unseen={shown(part.path): part.unseen for part in everything if part.unseen},
    )


def wanted_blocks(
    difference: Difference, told: Mapping[int, Sequence[Part] | None]
) -> dict[Path, list[int]]:
    """Return which blocks of tensors are to be fetched to say how far they are apart.

    All that differ, where these are few; else some of each, from all over it.
    """
    differing = _differing_blocks(difference, told)
    shares = dict.fromkeys(list(differing)[:_BLOCKS], 0)
    left = _BLOCKS
    while left and any(shares[path] < len(differing[path]) for path in shares):
        for path, share in shares.items():
            if left and share < len(differing[path]):
                shares[path] += 1
                left -= 1
    return {path: _spread(differing[path], share) for path, share in shares.items()}


def with_distances(
    difference: Difference,
    told: Mapping[int, Sequence[Part] | None],
    measured: Mapping[Path, tuple[float, float, int, int]],
) -> Difference:
    """Add how far the parts are apart.

    Parameters
    ----------
    measured
        Of tensors, what was measured in the blocks fetched: the largest and the largest relative
        difference, how many elements differ, and how many there were.
    """
    counts = _counts(difference, told)
    parts = []
    for part in difference.parts:
        distance = None
        if part.path in measured:
            largest, relative, differing, seen = measured[part.path]
            blocks, total = counts[part.path]
            distance = Distance(largest, relative, differing, seen, blocks)
            if not distance.is_sampled:
                distance = replace(distance, seen=total, count=total)
        elif part.path not in counts:
            distance = _of_numbers(part, told)
        parts.append(replace(part, distance=distance))
    return replace(difference, parts=tuple(parts))


def _signature(parts: Sequence[Part]) -> tuple[object, ...]:
    return tuple(sorted((p.path, p.type, tuple(sorted(p.facets.items())), p.digest) for p in parts))


def _differences(
    paths: Mapping[Path, None], by_path: Mapping[int, Mapping[Path, Part]]
) -> Iterator[PartDifference]:
    """Yield what differs, but nothing within what differs in kind itself."""
    apart: set[Path] = set()
    for path in paths:  # what holds others comes before these
        if path and path[:-1] in apart:
            apart.add(path)
            continue
        have = {rank: parts[path] for rank, parts in by_path.items() if path in parts}
        lacking = tuple(sorted(by_path.keys() - have.keys()))
        if lacking:
            apart.add(path)
            some = tuple(sorted(have))
            yield PartDifference(path, only_on(some), tuple(sorted((some, lacking))))
            continue
        if difference := _of_part(path, have):
            if len({part.digest for part in have.values()}) == 1:  # it holds others
                apart.add(path)
            yield difference


def _of_part(path: Path, have: Mapping[int, Part]) -> PartDifference | None:
    groups = grouped({rank: part.type for rank, part in have.items()})
    if len(groups) > 1:
        return PartDifference(path, f"type {each(groups)}", tuple(ranks for ranks, _ in groups))
    for facet in _FACETS:
        groups = grouped({rank: part.facets.get(facet, "none") for rank, part in have.items()})
        if len(groups) > 1:
            return PartDifference(path, f"{facet} {each(groups)}", tuple(r for r, _ in groups))
    alike = tuple(ranks for ranks, _ in grouped({rank: p.digest for rank, p in have.items()}))
    if len(alike) == 1:
        return None
    first = next(iter(have.values()))
    if first.count:
        kind = " ".join(first.facets[one] for one in ("length", "shape") if one in first.facets)
        return PartDifference(path, f"{kind} {first.facets['dtype']}", alike)
    texts = grouped({ranks[0]: have[ranks[0]].text for ranks in alike})
    how = f"value {each(texts)}" if len(texts) == len(alike) else "other contents"
    return PartDifference(path, how, alike)


def _differing_blocks(
    difference: Difference, told: Mapping[int, Sequence[Part] | None]
) -> dict[Path, list[int]]:
    found: dict[Path, list[int]] = {}
    for path, digests in _digests(difference, told).items():
        starts = range(0, len(digests[0]), _DIGEST_BYTES)
        found[path] = [
            start // _DIGEST_BYTES
            for start in starts
            if len({one[start : start + _DIGEST_BYTES] for one in digests}) > 1
        ]
    return found


def _digests(
    difference: Difference, told: Mapping[int, Sequence[Part] | None]
) -> dict[Path, list[bytes]]:
    """Return the checksums of the tensors whose values differ, and nothing else about them."""
    wanted = {part.path: part.groups for part in difference.parts}
    by_path = {
        rank: {part.path: part for part in parts or () if part.path in wanted}
        for rank, parts in told.items()
    }
    found: dict[Path, list[bytes]] = {}
    for path in wanted:
        have = [parts[path] for parts in by_path.values() if path in parts]
        alike = {(part.type, part.count, *sorted(part.facets.items())) for part in have}
        if len(have) == len(told) and len(alike) == 1 and have[0].count:
            found[path] = [part.digest for part in have]
    return found


def _counts(
    difference: Difference, told: Mapping[int, Sequence[Part] | None]
) -> dict[Path, tuple[int, int]]:
    """Return how many elements lie in the blocks that differ of each tensor, and in all of it."""
    parts = {part.path: part for one in told.values() for part in one or ()}
    counts = {}
    for path, differing in _differing_blocks(difference, told).items():
        count = parts[path].count
        within = sum(min(BLOCK, count - index * BLOCK) for index in differing)
        counts[path] = (within, count)
    return counts


def _of_numbers(part: PartDifference, told: Mapping[int, Sequence[Part] | None]) -> Distance | None:
    numbers = [
        one.number
        for parts in told.values()
        for one in parts or ()
        if one.path == part.path and one.number is not None
    ]
    if len(numbers) < len(told) or len({type(number) for number in numbers}) > 1:
        return None
    return Distance(*_apart(numbers), 1, 1, 1)


def _apart(numbers: Sequence[float]) -> tuple[float, float]:
    """Return the largest difference of numbers, and that in relation to the larger one."""
    finite = [number for number in numbers if math.isfinite(number)]
    odd = {repr(number) for number in numbers if not math.isfinite(number)}
    if odd:
        return (math.inf, math.inf) if finite or len(odd) > 1 else (0.0, 0.0)
    largest = float(max(finite) - min(finite))
    scale = max(map(abs, finite))
    return largest, largest / scale if scale else 0.0


def _spread(indices: list[int], count: int) -> list[int]:
    if count >= len(indices):
        return indices
    return [indices[i * len(indices) // count] for i in range(count)]


def _what(parts: Mapping[Path, Part]) -> str:
    """Return what was compared: ``12 tensors of 1,234 elements, 5 other values``."""
    tensors = [part for part in parts.values() if "dtype" in part.facets]
    others = len([p for p in parts.values() if p.digest and "dtype" not in p.facets])
    told = []
    if tensors:
        elements = sum(part.count for part in tensors)
        tensor = "1 tensor" if len(tensors) == 1 else f"{len(tensors):,} tensors"
        told.append(f"{tensor} of {elements:,} element{'' if elements == 1 else 's'}")
    if others or not tensors:
        other = "other " if tensors else ""
        told.append(f"{others:,} {other}value{'' if others == 1 else 's'}")
    return ", ".join(told)
