"""How many ranks, on which devices, over which backend: decided once, before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ddp_magic.errors import SetupError, UsageError

GPU_BACKEND = "cpu:gloo,cuda:nccl"  # tensors on either device work
CPU_BACKEND = "gloo"
_CPU_RANKS = 2


@dataclass(frozen=True)
class Topology:
    """The ranks of one session.

    Attributes
    ----------
    backend
        What ``init_process_group`` is given.
    devices
        The device of every rank, in rank order: ``"cuda:0"`` or ``"cpu"``.
    threads
        CPU threads of each rank: its share of the cores, or the user's OMP_NUM_THREADS.
    note
        A sentence on a choice that may surprise, or ``""``.
    """

    backend: str
    devices: tuple[str, ...]
    threads: int = 1
    note: str = ""

    @property
    def world_size(self) -> int:
        return len(self.devices)

    @property
    def on_gpu(self) -> bool:
        return self.devices[0].startswith("cuda")


def choose_topology(
    nproc: int | None,
    backend: str | None,
    *,
    gpu_count: int,
    core_count: int,
    environ: Mapping[str, str],
    available: Collection[str] | None = None,
) -> Topology:
    """Decide the ranks of a session.

    Parameters
    ----------
    nproc
        Number of ranks asked for; None: one per visible GPU, or 2 on the CPU.
    backend
        ``"auto"`` (or None), ``"nccl"`` or ``"gloo"``.
    gpu_count
        GPUs that the ranks will see.
    core_count
        CPU cores that the ranks share.
    environ
        The environment that the ranks inherit.
    available
        The backends that the ranks' torch has; None where not known yet.

    Raises
    ------
    UsageError
        ``nproc`` below 1, or a backend that does not exist.
    SetupError
        A backend that this torch lacks; more ranks than GPUs with NCCL.
    """
    if nproc is not None and nproc < 1:
        raise UsageError(f"-n/--nproc {nproc}: at least 1 rank is needed")
    wanted = backend or "auto"
    if wanted not in ("auto", "nccl", "gloo"):
        raise UsageError(f"--backend {wanted}: not one of auto, nccl or gloo")
    note = ""
    if wanted == "auto":
        wanted, note = _auto_backend(gpu_count, available)
    _check_available(wanted, available)
    if wanted == "gloo":
        devices = ("cpu",) * (nproc or _CPU_RANKS)
        return Topology(CPU_BACKEND, devices, _threads(core_count, len(devices), environ), note)
    _check_gpus(nproc, gpu_count, environ)
    devices = tuple(f"cuda:{rank}" for rank in range(nproc or gpu_count))
    return Topology(GPU_BACKEND, devices, _threads(core_count, len(devices), environ), note)


def rank_environment(
    rank: int,
    world_size: int,
    *,
    master_addr: str,
    master_port: int,
    run_id: str,
    local_rank: int | None = None,
    local_world_size: int | None = None,
    node_rank: int = 0,
    node_count: int = 1,
) -> dict[str, str]:
    """Return the variables that torchrun sets on a rank; by default all ranks share one node.

    The agent's own store (TORCHELASTIC_USE_AGENT_STORE) is left out: there is no agent.
    """
    values = {
        "RANK": rank,
        "LOCAL_RANK": rank if local_rank is None else local_rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size if local_world_size is None else local_world_size,
        "GROUP_RANK": node_rank,
        "NODE_RANK": node_rank,
        "GROUP_WORLD_SIZE": node_count,
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": master_port,
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    return {name: str(value) for name, value in values.items()}


def visible_devices(
    cuda_visible_devices: str | None, device_count: int, uuids: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the GPUs that CUDA shows to a process, as CUDA reads the variable.

    Parameters
    ----------
    cuda_visible_devices
        The value of CUDA_VISIBLE_DEVICES; None where it is not set.
    device_count
        GPUs in the machine.
    uuids
        Their UUIDs, by which the variable may name them; if none are given, a UUID is
        taken to be that of a GPU here.

    Returns
    -------
    tuple of str
        Index or UUID of each visible GPU, in CUDA's order: what follows an entry that
        names no GPU is not seen, an entry given twice hides all, and of MIG slices a
        process sees the first alone.
    """
    if cuda_visible_devices is None:
        return tuple(str(index) for index in range(device_count))
    seen: list[str] = []
    for entry in cuda_visible_devices.split(","):
        device = _device(entry.strip(), device_count, uuids)
        if device is None:
            break
        if device in seen:
            return ()
        seen.append(device)
        if device.startswith("MIG-"):
            return tuple(seen[:1])
    return tuple(seen)


def _device(entry: str, device_count: int, uuids: Sequence[str]) -> str | None:
    if entry.startswith("MIG-"):
        return entry
    if entry.startswith("GPU-"):
        matches = [uuid for uuid in uuids if uuid.startswith(entry)]
        return (matches[0] if len(matches) == 1 else None) if uuids else entry
    if entry.isascii() and entry.isdigit() and int(entry) < device_count:
        return str(int(entry))
    return None


def _auto_backend(gpu_count: int, available: Collection[str] | None) -> tuple[str, str]:
    if not gpu_count:
        return "gloo", ""
    if available is None or "nccl" in available:
        return "nccl", ""
    gpus = "the GPU is" if gpu_count == 1 else f"the {gpu_count} GPUs are"
    return "gloo", f"this torch has no NCCL: the ranks run on the CPU, {gpus} not used"


def _check_available(wanted: str, available: Collection[str] | None) -> None:
    needed = {"gloo", wanted}
    missing = sorted(needed.difference(available)) if available is not None else []
    if missing:
        has = ", ".join(sorted(available or ())) or "none"
        raise SetupError(
            f"--backend {wanted}: this torch is built without {missing[0]} (it has: {has})",
            fix="--backend gloo trains on the CPU" if missing == ["nccl"] else "",
        )


def _check_gpus(nproc: int | None, gpu_count: int, environ: Mapping[str, str]) -> None:
    if gpu_count and (nproc or gpu_count) <= gpu_count:
        return
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if not gpu_count:
        raise SetupError(
            "--backend nccl: no GPU is visible, and each rank needs one of its own",
            fix="use --backend gloo to train on the CPU",
            context=f"CUDA_VISIBLE_DEVICES is {'not set' if visible is None else repr(visible)}",
        )
    shown = "not set" if visible is None else repr(visible)
    equation = f"ranks ({nproc or 1}) <= visible GPUs ({gpu_count}) must hold with NCCL"
    choice = f"-n {gpu_count}, or "
    raise SetupError(
        f"{equation}: each rank needs a GPU of its own",
        fix=f"use {choice}--backend gloo to train on the CPU",
        context=f"CUDA_VISIBLE_DEVICES is {shown}",
    )


def _threads(core_count: int, rank_count: int, environ: Mapping[str, str]) -> int:
    # It may be a list, a number for each level of nesting.
    outermost = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if outermost.isdecimal() and int(outermost) > 0:
        return int(outermost)
    return max(1, core_count // rank_count)
