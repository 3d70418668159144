"""Takes pandas' tables apart, if pandas is there: their data lie in compiled objects."""

from __future__ import annotations

import sys
from typing import Any

from ddp_magic.rank.wording import text_of

_MOST_COLUMNS = 1_000


def columns(value: Any) -> list[tuple[str, Any]] | None:
    """Return the index and the columns of a DataFrame or Series as arrays; None of all else."""
    pandas = sys.modules.get("pandas")
    frame, series = (getattr(pandas, name, None) for name in ("DataFrame", "Series"))
    if frame is None or series is None:
        return None
    if issubclass(type(value), series):
        index = series.index.__get__(value)
        return [(".index", index.to_numpy()), (".values", series.to_numpy(value))]
    if not issubclass(type(value), frame):
        return None
    index, names = frame.index.__get__(value), frame.columns.__get__(value)
    column = frame.iloc.fget(value)
    found = [
        (f"[{text_of(name)}]", column[:, number].to_numpy())
        for number, name in enumerate(names[:_MOST_COLUMNS])
    ]
    return [(".index", index.to_numpy()), (".shape", frame.shape.fget(value)), *found]
