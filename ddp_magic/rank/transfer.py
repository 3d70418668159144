"""Variables on their way between the notebook and this rank.

Everything here is asked on a thread beside the main one (see `ddp_magic.rank.asked`), while that
may be training. The only code of the user's that is run is what pickling itself calls.
"""

from __future__ import annotations

import builtins
import collections
import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from typing import Any

from ddp_magic.core.mapping import mapped
from ddp_magic.core.names import VariablePath
from ddp_magic.core.parcel import Parcel, pack, write
from ddp_magic.errors import UsageError
from ddp_magic.rank.intime import TooLong, in_time
from ddp_magic.rank.lookup import Missing, find
from ddp_magic.rank.shell import this_shell
from ddp_magic.rank.tensorpickle import RankPickler

_OWN = ("rank", "world_size", "local_rank", "device", "ddp")
_MOST_WAITING = 8  # transfers of which the notebook never said how they went on

_waiting: collections.OrderedDict[str, Any] = collections.OrderedDict()


def pack_variables(payload: dict[str, Any]) -> dict[str, Any]:
    """Pack variables for the notebook.

    Parameters
    ----------
    payload
        ``paths``: of each, by what the notebook calls it; ``ticket``: what this transfer is called;
        ``inline_bytes``: up to how much is returned at once; ``patience_s``: how long pickling may
        take.

    Returns
    -------
    dict
        ``missing``: why some are not there; or ``parts``, of the parcel; or ``nbytes``: it waits
        for `write_shared` or `send`.
    """
    paths = {name: VariablePath.from_wire(wire) for name, wire in payload["paths"].items()}
    names = _names()
    values, missing = {}, {}
    for name, path in paths.items():
        try:
            values[name] = find(path, names)
        except Missing as error:
            missing[name] = str(error) + _suggestion(path.root, names)
    if missing:
        return {"missing": missing}
    shown = {str(paths[name]): value for name, value in values.items()}
    packed = _in_time(lambda: pack(shown, RankPickler), payload, "pickled")
    if packed.nbytes <= payload["inline_bytes"]:
        return {"parts": packed.in_bytes()}
    _keep(payload["ticket"], packed)
    return {"nbytes": packed.nbytes}


def write_shared(payload: dict[str, Any]) -> dict[str, Any]:
    """Write what was packed to the notebook's memory; return its ``spans``, or why not."""
    packed: Parcel = _waiting[payload["ticket"]]
    spans = packed.spans()
    try:
        with _opened(payload["address"]) as file:
            write(packed.parts, spans, lambda part, at: os.pwrite(file.fileno(), part, at))
    except OSError as error:
        return {"unshared": str(error)}
    del _waiting[payload["ticket"]]
    return {"spans": spans}


def send(payload: dict[str, Any]) -> dict[str, Any]:
    """Return what was packed, as bytes."""
    return {"parts": _waiting.pop(payload["ticket"]).in_bytes()}


def drop(payload: dict[str, Any]) -> None:
    """Forget a transfer."""
    _waiting.pop(payload["ticket"], None)


def receive(payload: dict[str, Any]) -> dict[str, Any]:
    """Make the notebook's variables here; `set_received` sets them.

    Parameters
    ----------
    payload
        ``parts`` of a parcel; or the ``address`` of memory and the ``spans`` in it; ``ticket`` and
        ``patience_s`` as above; ``at_once``: to set them as well.

    Returns
    -------
    dict
        Empty, or why the memory is ``unshared``.
    """
    if "parts" in payload:
        parcel = Parcel.of_parts(payload["parts"])
    else:
        try:
            with _opened(payload["address"]) as file:
                memory = mapped(file.fileno(), os.fstat(file.fileno()).st_size)
        except OSError as error:
            return {"unshared": str(error)}
        parcel = Parcel.within(memory, payload["spans"])
    _keep(payload["ticket"], _in_time(lambda: _opened_parcel(parcel), payload, "made"))
    if payload["at_once"]:
        set_received(payload)
    return {}


def set_received(payload: dict[str, Any]) -> None:
    """Set the variables of `receive`."""
    this_shell().user_ns.update(_waiting.pop(payload["ticket"]))


def _opened_parcel(parcel: Parcel) -> Any:
    try:
        return parcel.open()
    except Exception as error:  # whatever the user's own __setstate__ raises, too
        raise UsageError(f"cannot be made on a rank: {type(error).__name__}: {error}") from None


def _names() -> Mapping[str, Any]:
    own = {name: vars(builtins)[name] for name in _OWN if name in vars(builtins)}
    return collections.ChainMap(dict(this_shell().user_ns), own)


def _suggestion(name: str, names: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, [n for n in names if not n.startswith("_")], n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _keep(ticket: str, what: Any) -> None:
    _waiting[ticket] = what
    while len(_waiting) > _MOST_WAITING:
        _waiting.popitem(last=False)


def _in_time(function: Callable[[], Any], payload: dict[str, Any], done: str) -> Any:
    try:
        return in_time(payload["patience_s"], function)
    except TooLong:
        raise UsageError(
            f"not {done} within {payload['patience_s']:g} s: a __reduce__ or __setstate__ of its"
            " own may wait for something"
        ) from None


@contextmanager
def _opened(address: Mapping[str, str]) -> Iterator[FileIO]:
    """Open the notebook's memory; a number of its open files may stand for another one by now."""
    with open(address["path"], "r+b", buffering=0) as file:
        if address["token"] not in os.readlink(f"/proc/self/fd/{file.fileno()}"):
            raise OSError("the notebook's memory is no longer there")
        yield file
