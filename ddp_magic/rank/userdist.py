"""Code that speaks torch.distributed itself, in a session that has its process group already.

``init_process_group`` on the live group keeps it, ``destroy_process_group`` leaves it, and what
can be had on GPUs alone is left out on ranks that have none: so a script that was written for
torchrun runs in a cell.
"""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel

from ddp_magic.errors import StateError
from ddp_magic.rank.patching import Patches
from ddp_magic.rank.report import Report

_PREFIX = "module."


class UserDistributed:
    """Lets the user's own calls of torch.distributed meet the session's process group.

    Parameters
    ----------
    report
        Where to say what was not done as asked.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._patches = Patches()
        self._ours = False

    def install(self) -> None:
        """Take up the user's calls."""
        modules = (dist, distributed_c10d)
        self._patches.replace_in(modules, "init_process_group", self._patched_init)
        self._patches.replace_in(modules, "destroy_process_group", self._patched_destroy)
        self._patches.replace(DistributedDataParallel, "__init__", self._patched_ddp_init)
        self._patches.replace(nn.DataParallel, "__init__", self._patched_data_parallel)
        self._patches.replace(nn.SyncBatchNorm, "forward", self._patched_sync_forward)
        self._patches.replace(nn.Module, "load_state_dict", self._patched_load)

    def uninstall(self) -> None:
        """Give torch its functions back."""
        self._patches.undo()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A context in which calls go to torch: the session itself makes and ends the group."""
        before, self._ours = self._ours, True
        try:
            yield
        finally:
            self._ours = before

    # --- the process group

    def _patched_init(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            if self._ours or not dist.is_initialized():
                original(*args, **kwargs)
            else:
                self._join(signature.bind(*args, **kwargs).arguments)

        return init_process_group

    def _join(self, asked: dict[str, Any]) -> None:
        """Keep the live group, if it can stand for the one that was asked for.

        Raises
        ------
        StateError
            If that one was to have another number of ranks.
        """
        world_size = dist.get_world_size()
        rank = dist.get_rank()
        if asked.get("rank", -1) not in (-1, None, rank):
            raise StateError(
                f"init_process_group asks for rank={asked['rank']} on rank {rank}.",
                fix="Use rank=rank, or leave it out.",
            )
        if asked.get("world_size", -1) not in (-1, None, world_size):
            raise StateError(
                f"init_process_group asks for world_size={asked['world_size']}, "
                f"but this session has {world_size} ranks.",
                fix=f"Use world_size={world_size}, or `%ddp restart -n {asked['world_size']}`.",
            )
        backend, live = asked.get("backend"), dist.get_backend_config()
        if backend is not None and not _offers(live, str(backend).lower()):
            kept = " and ".join(sorted(_backends(live)))
            text = f'init_process_group("{backend}"): the session keeps its own group, {kept}'
            self._report.notice(f"userdist:backend:{backend}", text)

    def _patched_destroy(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def destroy_process_group(group: dist.ProcessGroup | None = None) -> None:
            if self._ours or (group is not None and group is not dist.group.WORLD):
                original(group)

        return destroy_process_group

    # --- what needs a GPU

    def _patched_ddp_init(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init(*args: Any, **kwargs: Any) -> None:
            asked = signature.bind(*args, **kwargs)
            module: nn.Module = asked.arguments["module"]
            if all(parameter.device.type == "cpu" for parameter in module.parameters()):
                self._leave_out_devices(asked.arguments)
            original(*asked.args, **asked.kwargs)

        return init

    def _leave_out_devices(self, arguments: dict[str, Any]) -> None:
        for name in ("device_ids", "output_device"):
            if arguments.get(name):
                text = f"DDP({name}={arguments[name]}): left out, as the model is on the CPU"
                self._report.notice(f"userdist:{name}", text)
                arguments[name] = None

    def _patched_data_parallel(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init(*args: Any, **kwargs: Any) -> None:
            """Use this rank's GPU: the others are other ranks'."""
            asked = signature.bind(*args, **kwargs)
            if torch.cuda.is_available():
                own = torch.cuda.current_device()
                asked.arguments["device_ids"], asked.arguments["output_device"] = [own], own
                text = "nn.DataParallel uses each rank's own GPU; the ranks are parallel already"
                self._report.notice("userdist:dataparallel", text)
            original(*asked.args, **asked.kwargs)

        return init

    def _patched_sync_forward(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(original)
        def forward(layer: nn.SyncBatchNorm, batch: Tensor) -> Tensor:
            if not batch.is_cpu or not layer.training:
                return original(layer, batch)
            self._report.notice(
                "userdist:syncbn",
                "SyncBatchNorm synchronises on GPUs alone: on the CPU each rank has statistics of "
                "its own, as with BatchNorm",
            )
            return _BatchNorm.forward(layer, batch)

        return forward

    # --- checkpoints

    def _patched_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def load_state_dict(
            module: nn.Module, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any
        ) -> Any:
            if _is_of_ddp(state_dict) and not hasattr(module, "module"):
                text = "load_state_dict: the keys begin with `module.`, as DDP's do; taken without"
                self._report.notice("userdist:prefix", text)
                state_dict = _without_prefix(state_dict)
            return original(module, state_dict, *args, **kwargs)

        return load_state_dict


def _is_of_ddp(state_dict: Any) -> bool:
    return bool(state_dict) and all(str(key).startswith(_PREFIX) for key in state_dict)


def _without_prefix(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    plain = OrderedDict(state_dict)
    if (metadata := getattr(state_dict, "_metadata", None)) is not None:
        plain._metadata = metadata.copy()  # type: ignore[attr-defined]
    consume_prefix_in_state_dict_if_present(plain, _PREFIX)
    return plain


def _offers(live: str, asked: str) -> bool:
    return _backends(asked) <= _backends(live)


def _backends(config: str) -> set[str]:
    """Return the names in ``gloo`` or ``cpu:gloo,cuda:nccl``."""
    return {part.rpartition(":")[2] for part in config.split(",")}
