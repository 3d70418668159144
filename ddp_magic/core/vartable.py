"""The variables of all ranks side by side: which of them differ, and how."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddp_magic.core.near import no_such
from ddp_magic.core.parts import each, grouped, only_on
from ddp_magic.core.ranks import format_ranks, named
from ddp_magic.errors import SetupError, UsageError

DIFFERS, SAMPLED = "≠", "≈"
COLUMNS = ("", "name", "type", "value", "memory", "")
_LONGEST_TYPE = 48
_LEGEND = f"{SAMPLED} alike as far as was looked at: a sample of it"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Summary:
    """One variable on one rank.

    Attributes
    ----------
    type
        Its class.
    shape, dtype, device
        Of a tensor or array; ``""`` for all else.
    text
        Its value in a few words, or what is known of it.
    size_bytes
        The memory that it takes, about; None if that is not known.
    digest
        The same where it is the same, as far as was looked at.
    is_whole
        Whether all of it was looked at.
    """

    type: str
    text: str
    digest: bytes
    is_whole: bool
    shape: str = ""
    dtype: str = ""
    device: str = ""
    size_bytes: int | None = None

    @property
    def kind(self) -> str:
        """Type, shape and dtype: ``Tensor (2, 3) float32``."""
        return " ".join(part for part in (self.type, self.shape, self.dtype) if part)


@dataclass(frozen=True)
class Variable:
    """One variable on the ranks that have it.

    Attributes
    ----------
    on
        What each of these has, by rank.
    lacking
        Ranks that were asked and have none of that name.
    """

    name: str
    on: Mapping[int, Summary]
    lacking: tuple[int, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether it is not the same on all ranks."""
        return bool(self.how)

    @property
    def how(self) -> str:
        """How it differs between ranks; ``""`` if it does not, as far as was looked at."""
        if self.lacking:
            return only_on(tuple(sorted(self.on)))
        for word, attribute in (("type", "type"), ("shape", "shape"), ("", "dtype")):
            groups = grouped({rank: getattr(one, attribute) for rank, one in self.on.items()})
            if len(groups) > 1:
                return f"{word} {each(groups)}".lstrip()
        places = grouped({r: one.device.partition(":")[0] for r, one in self.on.items()})
        if len(places) > 1:
            return each(places)
        return self._how_values_differ()

    def _how_values_differ(self) -> str:
        texts = self.texts()
        alike = len({one.digest for one in self.on.values()}) == 1
        if alike and (len(texts) == 1 or not self.is_sampled):  # a dict has no order
            return ""
        if next(iter(self.on.values())).shape not in ("", "()"):
            return "same shape, other values"
        if len(texts) > 1 and all("…" not in text for _, text in texts):
            return f"value {each(texts)}"
        return "other contents"

    @property
    def is_sampled(self) -> bool:
        """Whether not all of it was looked at on some rank, so that it may differ all the same."""
        return any(not one.is_whole for one in self.on.values())

    @property
    def mark(self) -> str:
        """``≠`` if it differs, ``≈`` if no difference was found in a sample; else ``""``."""
        return DIFFERS if self.differs else SAMPLED if self.is_sampled else ""

    def texts(self) -> list[tuple[tuple[int, ...], str]]:
        """Return what it is on each group of ranks where that reads alike."""
        return grouped({rank: one.text for rank, one in self.on.items()})

    def kinds(self) -> str:
        """Return its type, shape and dtype, or those of all groups of ranks."""
        return each(grouped({rank: one.kind for rank, one in self.on.items()}))

    def memory(self) -> str:
        """Return the memory that it takes on a rank, the most if they differ."""
        sizes = [one.size_bytes for one in self.on.values() if one.size_bytes is not None]
        return size_text(max(sizes)) if sizes else ""


@dataclass(frozen=True)
class Variables:
    """The variables of all ranks, those that differ first.

    Iterating gives each `Variable`; a name in brackets gives that one.

    Attributes
    ----------
    rows
        The variables.
    ranks
        The ranks that answered.
    missing
        Why others did not, by rank.
    """

    rows: tuple[Variable, ...]
    ranks: tuple[int, ...]
    missing: Mapping[int, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        return any(row.name == name for row in self.rows)

    def __getitem__(self, name: str) -> Variable:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    @property
    def differing(self) -> tuple[Variable, ...]:
        """Those that are not the same on all ranks."""
        return tuple(row for row in self.rows if row.differs)

    @property
    def df(self) -> Any:
        """The table as a pandas DataFrame: a line for each variable and rank.

        Raises
        ------
        SetupError
            pandas is not installed in the notebook's environment.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise SetupError(f"A DataFrame needs pandas: {error}.", fix="Install it.") from None
        records = [
            {"name": row.name, "rank": rank, "differs": row.how, **_plain(one)}
            for row in self.rows
            for rank, one in sorted(row.on.items())
        ]
        names = ["name", "rank", "type", "shape", "dtype", "device", "value", "bytes"]
        return pandas.DataFrame(records, columns=[*names, "sampled", "differs"])

    @property
    def headline(self) -> str:
        """One line: how many there are, on which ranks, how many differ."""
        count = "1 variable" if len(self.rows) == 1 else f"{len(self.rows)} variables"
        if not self.ranks:
            return "no rank answered"
        if len(self.ranks) == 1:
            return f"{count} on {named(self.ranks)}"
        differing = len(self.differing)
        told = f"{differing} differ{'s' if differing == 1 else ''}" if differing else "none differs"
        return f"{count} on {named(self.ranks)}, {told}"

    def notes(self) -> list[str]:
        """Return what else is to be said: why ranks are missing, what marks mean."""
        sampled = any(row.mark == SAMPLED for row in self.rows) and len(self.ranks) > 1
        return [*self.missing.values(), *([_LEGEND] if sampled else [])]

    def __str__(self) -> str:
        lines = [line for row in self.rows for line in _lines(row, len(self.ranks) > 1)]
        return "\n".join([self.headline, *_aligned(lines), *self.notes()])

    __repr__ = __str__


def gather(
    told: Mapping[int, Mapping[str, Summary]],
    missing: Mapping[int, str],
    pattern: str = "",
    known: Iterable[str] = (),
) -> Variables:
    """Lay the ranks' variables side by side.

    Parameters
    ----------
    told
        Those of each rank that answered, by name.
    missing
        Why others did not answer.
    pattern
        What was asked for.
    known
        What variables there are otherwise.

    Raises
    ------
    UsageError
        Nothing is called so.
    """
    rows = []
    for name in dict.fromkeys(name for one in told.values() for name in one):
        on = {rank: one[name] for rank, one in sorted(told.items()) if name in one}
        rows.append(Variable(name, on, tuple(rank for rank in sorted(told) if rank not in on)))
    if pattern and not rows and told:
        cause, fix = no_such(pattern, known, tuple(told))
        raise UsageError(cause, fix=fix)
    rows.sort(key=lambda row: (not row.differs, row.name))
    return Variables(tuple(rows), tuple(sorted(told)), missing)


def size_text(size_bytes: float) -> str:
    """Return an amount of memory in the unit that reads best."""
    for unit in _UNITS:
        if size_bytes < 1024 or unit == _UNITS[-1]:
            break
        size_bytes /= 1024
    return (
        f"{size_bytes:,.0f} {unit}"
        if size_bytes >= 10 or unit == "B"
        else (f"{size_bytes:,.1f} {unit}")
    )


def _plain(one: Summary) -> dict[str, Any]:
    whole = {"type": one.type, "shape": one.shape, "dtype": one.dtype, "device": one.device}
    return {**whole, "value": one.text, "bytes": one.size_bytes, "sampled": not one.is_whole}


def _lines(row: Variable, compared: bool) -> Iterator[tuple[str, ...]]:
    """Yield a variable's lines: one, or one for each group of ranks with a value of its own."""
    kinds = row.kinds()
    kinds = kinds if len(kinds) <= _LONGEST_TYPE else f"{kinds[: _LONGEST_TYPE - 1]}…"
    texts = row.texts()
    alone = len(texts) == 1 and not row.lacking
    first, *others = [
        text if alone else f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}: {text}"
        for ranks, text in texts
    ]
    yield (row.mark if compared else "", row.name, kinds, first, row.memory(), row.how)
    for other in others:
        yield ("", "", "", other, "", "")


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    if not rows:
        return
    rows = [COLUMNS, *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        yield "  ".join(t.ljust(width) for t, width in zip(row, widths, strict=True)).rstrip()
