"""What of the ranks' printed text is shown, and how (``--output grouped|all|rank0``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Protocol

from ddp_magic.core.align import Follower, LeadLog
from ddp_magic.core.lines import LineSplitter, is_erased, last_state, text_beside_bar
from ddp_magic.core.ranks import format_ranks

_STREAMS = ("stdout", "stderr")
_LONGEST_RUN = 8192  # lines that are taken at once


@dataclass(frozen=True)
class Chunk:
    """Text to show, exactly as it stands.

    Attributes
    ----------
    stream
        ``"stdout"`` or ``"stderr"``.
    text
        What to show; a chunk need not end a line.
    rank
        Whose text it is; None where several ranks printed the same.
    """

    stream: str
    text: str
    rank: int | None


class Grouper:
    """Turns what several ranks print into what the notebook shows.

    It has no clock: the time is passed in, in seconds from any fixed start.

    - ``grouped``: the lead rank's text at once and as printed; of the other ranks only the
      lines that the lead does not print too, each marked ``[rank 2] ``.
    - ``all``: every rank's complete lines, each marked.
    - ``rank0``: the lead rank's text alone.

    Parameters
    ----------
    ranks
        The ranks that run the cell. The lowest is the lead rank.
    mode
        ``"grouped"``, ``"all"`` or ``"rank0"``.
    """

    def __init__(self, ranks: Iterable[int], mode: str = "grouped") -> None:
        kinds: dict[str, type[_Stream]]
        kinds = {"grouped": _Grouped, "all": _All, "rank0": _LeadOnly}
        ordered = sorted(ranks)
        self._streams = {name: kinds[mode](name, ordered) for name in _STREAMS}

    def feed(self, rank: int, stream: str, text: str, now_s: float) -> list[Chunk]:
        """Take text that a rank printed; return what is to be shown now."""
        return self._streams[stream].feed(rank, text, now_s) if text else []

    def tick(self, now_s: float) -> list[Chunk]:
        """Return what has waited long enough. Call it a few times a second."""
        return [chunk for stream in self._streams.values() for chunk in stream.tick(now_s)]

    def finish(self) -> list[Chunk]:
        """Return all that is still held: no more text is to come."""
        return [chunk for stream in self._streams.values() for chunk in stream.finish()]


class _Stream(Protocol):
    def __init__(self, stream: str, ranks: Sequence[int]) -> None: ...
    def feed(self, rank: int, text: str, now_s: float) -> list[Chunk]: ...
    def tick(self, now_s: float) -> list[Chunk]: ...
    def finish(self) -> list[Chunk]: ...


class _LeadOnly:
    """One stream of ``rank0``."""

    def __init__(self, stream: str, ranks: Sequence[int]) -> None:
        self._stream = stream
        self._lead = ranks[0]

    def feed(self, rank: int, text: str, now_s: float) -> list[Chunk]:
        return [Chunk(self._stream, text, rank)] if rank == self._lead else []

    def tick(self, now_s: float) -> list[Chunk]:
        return []

    def finish(self) -> list[Chunk]:
        return []


class _All:
    """One stream of ``all``."""

    def __init__(self, stream: str, ranks: Sequence[int]) -> None:
        self._stream = stream
        self._splitters = {rank: LineSplitter(last_state) for rank in ranks}

    def feed(self, rank: int, text: str, now_s: float) -> list[Chunk]:
        return self._marked(rank, self._splitters[rank].feed(text))

    def tick(self, now_s: float) -> list[Chunk]:
        return []

    def finish(self) -> list[Chunk]:
        rests = ((rank, splitter.flush()) for rank, splitter in self._splitters.items())
        return [chunk for rank, lines in rests for chunk in self._marked(rank, lines)]

    def _marked(self, rank: int, lines: Sequence[str]) -> list[Chunk]:
        return [Chunk(self._stream, _mark((rank,), lines), rank)] if lines else []


class _Grouped:
    """One stream of ``grouped``."""

    def __init__(self, stream: str, ranks: Sequence[int]) -> None:
        self._stream = stream
        self._lead = ranks[0]
        self._splitters = {rank: LineSplitter(text_beside_bar) for rank in ranks}
        self._log = LeadLog()
        self._followers = {rank: Follower(rank, self._log) for rank in ranks[1:]}
        self._run = 1  # how many lines to take at once, as the last ones suggest
        self._line_open = False  # what is shown ends within a line of the lead

    def feed(self, rank: int, text: str, now_s: float) -> list[Chunk]:
        if not self._followers:
            return [Chunk(self._stream, text, rank)]
        lines = self._splitters[rank].feed(text)
        if rank != self._lead:
            self._followers[rank].extend(lines, now_s)
            self._followers[rank].drop_equal(now_s)
            return self.tick(now_s)
        self._line_open = not text.endswith("\n")
        self._log.extend(lines, now_s)
        for follower in self._followers.values():
            follower.drop_equal(now_s)
        return [Chunk(self._stream, text, rank), *self.tick(now_s)]

    def tick(self, now_s: float) -> list[Chunk]:
        if self._line_open and not self._may_break_line():
            return []
        return self._show(self._take_due(now_s))

    def finish(self) -> list[Chunk]:
        end_s = float("inf")
        self._see_line()
        self._log.extend(self._splitters[self._lead].flush(), end_s)
        for rank, follower in self._followers.items():
            follower.extend(self._splitters[rank].flush(), end_s)
            follower.drop_equal(end_s)
        return self._show(self._take_due(end_s))

    def _see_line(self) -> None:
        """Take a line that a bar was erased from as one that has not begun."""
        self._line_open = self._line_open and not is_erased(self._splitters[self._lead].rest)

    def _may_break_line(self) -> bool:
        """A progress bar draws itself anew; other text waits for its newline, within reason."""
        overfull = any(follower.overfull for follower in self._followers.values())
        return overfull or self._splitters[self._lead].rest_is_bar

    def _take_due(self, now_s: float) -> list[tuple[tuple[int, ...], list[str]]]:
        """Take the lines that are different for certain, with the ranks that printed them."""
        different = []
        followers = self._followers.values()
        while due := [each for each in followers if each.is_due(now_s)]:
            first = min(due, key=lambda each: (each.arrival_s, each.rank))
            arrival_s = first.arrival_s
            while first.is_due(now_s) and first.arrival_s == arrival_s:  # one rank's lines together
                same = [each for each in followers if each.head == first.head]
                lines = first.heads(self._different_run(first, same, now_s))
                for follower in same:
                    follower.pop_different(now_s, len(lines))
                different.append((tuple([each.rank for each in same]), lines))
        return different

    def _different_run(self, first: Follower, same: Sequence[Follower], now_s: float) -> int:
        """Return how many lines, the head and what follows it, can be taken at once."""
        count = min(self._run, *(each.batch_length for each in same))
        while count > 1 and not self._differ(first, same, count, now_s):
            count //= 2
        self._run = min(2 * count, _LONGEST_RUN)
        return count

    def _differ(self, first: Follower, same: Sequence[Follower], count: int, now_s: float) -> bool:
        """Tell whether the first lines of some ranks are equal, due, and nobody else's."""
        lines = first.heads(count)
        others = [each.head for each in self._followers.values() if each not in same]
        return (
            first.is_due(now_s, count)
            and all(each.heads(count) == lines and each.is_unlike(lines) for each in same)
            and not any(head in lines for head in others)
        )

    def _show(self, different: Sequence[tuple[tuple[int, ...], list[str]]]) -> list[Chunk]:
        if not different:
            return []
        self._see_line()
        chunks = []
        for ranks, group in groupby(different, key=lambda pair: pair[0]):
            text = _mark(ranks, list(chain.from_iterable(lines for _, lines in group)))
            chunks.append(Chunk(self._stream, text, ranks[0] if len(ranks) == 1 else None))
        if self._line_open:
            chunks[0] = Chunk(self._stream, "\n" + chunks[0].text, chunks[0].rank)
        self._line_open = False
        return chunks


def _mark(ranks: Sequence[int], lines: Sequence[str]) -> str:
    prefix = f"[rank {format_ranks(ranks)}] "
    return prefix + f"\n{prefix}".join(lines) + "\n"
