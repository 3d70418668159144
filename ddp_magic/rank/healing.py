"""A rank that has taken a dead one's place gets the variables of one that lives, and goes on as it.

They travel over the process group, which all ranks have joined by then.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_magic.rank import engine, variables
from ddp_magic.rank.graphpickle import GraphPickler
from ddp_magic.rank.shell import this_shell
from ddp_magic.rank.surroundings import (
    random_states,
    surroundings,
    take_random_states,
    take_surroundings,
)
from ddp_magic.rank.variables import Bundle, NotUnpacked

_CHUNK_BYTES = 64 * 2**20


def take_part(payload: dict[str, Any]) -> dict[str, Any]:
    """Give or get the variables, or see it done: all ranks call this at the same time.

    Parameters
    ----------
    payload
        ``source``: the rank whose variables are given; ``replaced``: the ranks that get them.

    Returns
    -------
    dict
        Of the source alone, what was moved and what was not.
    """
    rank = engine.current()
    source, replaced = payload["source"], payload["replaced"]
    rank.attacher.active = False  # what pickling calls is the user's code, and of one rank alone
    ours = {} if dist.get_rank() in replaced else variables.variables(_hidden())
    plains = _plain_values(ours, replaced)
    told: dict[str, Any] = {}
    if dist.get_rank() == source:
        told = _give_all(rank, replaced, ours, variables.own_ranks(plains, source))
        told["differing"] = variables.differing(plains, source)
    elif dist.get_rank() in replaced:
        own_variables, device = rank.membership.environment, torch.device(rank.membership.device)
        take_surroundings(_receive(source), own_variables)
        _take_up(rank, take(source, device))
    rank.attacher.rebuild_ddps()
    return told


def _plain_values(ours: Mapping[str, Any], replaced: list[int]) -> dict[int, variables.Plain]:
    """Return, on every rank, the numbers and strings of each that has variables."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, variables.plain(ours))
    return {rank: one for rank, one in enumerate(gathered) if rank not in replaced}


def _give_all(
    rank: engine.Rank, replaced: list[int], ours: dict[str, Any], own: set[str]
) -> dict[str, Any]:
    """Give the variables to each rank that gets them; return what is said of it."""
    place = rank.membership
    pickler = functools.partial(
        GraphPickler,
        rank=place.rank,
        device=torch.device(place.device),
        own_hooks=frozenset(rank.attacher.own_hooks()),
    )
    bundle = Bundle()
    for target in replaced:
        _send(surroundings(place.environment), target)
        along = functools.partial(_knowledge, rank)
        bundle = give(target, ours, own, pickler, along, bundle.left_out)
    return _tell(bundle, ours)


def give(
    target: int,
    values: Mapping[str, Any],
    own: set[str],
    make_pickler: Callable[[io.BytesIO], GraphPickler],
    along: Callable[[set[int]], Any],
    left_out: Mapping[str, str],
) -> Bundle:
    """Send variables until the other rank has all that it can make of them; see `pack`."""
    while True:
        bundle = variables.pack(values, own, make_pickler, along, left_out)
        _send((bundle.names, [(one.nbytes(), place) for one, place in bundle.storages]), target)
        _send_buffer(bundle.graph, target)
        for storage, _ in bundle.storages:
            if storage.device.type != "meta":
                _send_bytes(_bytes_of(storage).cpu(), target)
        failed: tuple[str, str] | None = _receive(target)
        if failed is None:
            return bundle
        left_out = bundle.left_out | dict([failed])


def take(source: int, device: torch.device) -> Any:
    """Set the variables that another rank gives; return what comes along.

    Parameters
    ----------
    device
        Of this rank, for what was on the other's.
    """
    while True:
        names, kinds = _receive(source)
        graph = _receive_buffer(source)
        storages = [_receive_storage(size, place or device, source) for size, place in kinds]
        try:
            along = variables.unpack(names, graph, storages)
        except NotUnpacked as failure:
            _send((failure.name, failure.reason), source)
        else:
            _send(None, source)
            return along


def _knowledge(rank: engine.Rank, packed: set[int]) -> dict[str, Any]:
    """Return what this package and IPython know of the variables."""
    return {
        "attacher": rank.attacher.record(packed),
        "sharder": rank.sharder.record(packed),
        "told": rank.report.told,
        "numbers": this_shell().compile._filename_map,  # of the cells, for tracebacks
        "random": random_states(),
    }


def _take_up(rank: engine.Rank, known: dict[str, Any]) -> None:
    rank.attacher.take_up(known["attacher"])
    rank.sharder.take_up(known["sharder"])
    rank.report.note_told(known["told"])
    this_shell().compile._filename_map.update(known["numbers"])
    take_random_states(known["random"])


def _tell(bundle: Bundle, ours: Mapping[str, Any]) -> dict[str, Any]:
    moved = [ours[name] for name in bundle.names]
    return {
        "variables": len(moved),
        "models": sum(isinstance(one, nn.Module) for one in moved),
        "optimizers": sum(isinstance(one, Optimizer) for one in moved),
        "left_out": bundle.left_out,
        "without_graph": [n for n in variables.without_graph(ours) if n not in bundle.left_out],
    }


def _hidden() -> dict[str, Any]:
    hidden: dict[str, Any] = this_shell().user_ns_hidden
    return hidden


# ---- between two ranks


def _receive_storage(size: int, place: str | torch.device, source: int) -> torch.UntypedStorage:
    device = torch.device(place)
    if device.type == "meta":
        return torch.UntypedStorage(size, device=device)
    received = torch.empty(size, dtype=torch.uint8)
    _receive_bytes(received, source)
    return received.to(device).untyped_storage()


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _send(value: Any, target: int) -> None:
    _send_buffer(bytearray(pickle.dumps(value)), target)


def _receive(source: int) -> Any:
    return pickle.loads(_receive_buffer(source))


def _send_buffer(buffer: memoryview | bytearray, target: int) -> None:
    dist.send(torch.tensor([len(buffer)]), target)
    _send_bytes(torch.frombuffer(buffer, dtype=torch.uint8), target)


def _receive_buffer(source: int) -> memoryview:
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, source)
    received = torch.empty(int(size), dtype=torch.uint8)
    _receive_bytes(received, source)
    return received.numpy().data


def _send_bytes(data: Tensor, target: int) -> None:
    if len(data):
        for chunk in data.split(_CHUNK_BYTES):
            dist.send(chunk, target)


def _receive_bytes(into: Tensor, source: int) -> None:
    if len(into):
        for chunk in into.split(_CHUNK_BYTES):
            dist.recv(chunk, source)
