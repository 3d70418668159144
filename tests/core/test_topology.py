from __future__ import annotations

import pytest

from ddp_magic.core.topology import (
    CPU_BACKEND,
    GPU_BACKEND,
    Topology,
    choose_topology,
    rank_environment,
    visible_devices,
)
from ddp_magic.errors import SetupError, UsageError


def choose(
    nproc: int | None = None,
    backend: str | None = None,
    gpu_count: int = 0,
    core_count: int = 8,
    environ: dict[str, str] | None = None,
    available: set[str] | None = None,
) -> Topology:
    return choose_topology(
        nproc,
        backend,
        gpu_count=gpu_count,
        core_count=core_count,
        environ=environ or {},
        available=available,
    )


def test_without_a_gpu_two_ranks_share_the_cores() -> None:
    assert choose() == Topology(CPU_BACKEND, ("cpu", "cpu"), threads=4)


def test_with_gpus_one_rank_on_each() -> None:
    chosen = choose(gpu_count=2, available={"gloo", "nccl"})
    assert chosen == Topology(GPU_BACKEND, ("cuda:0", "cuda:1"), threads=4)
    assert chosen.on_gpu
    assert chosen.world_size == 2


def test_fewer_ranks_than_gpus_take_the_first() -> None:
    assert choose(1, gpu_count=4).devices == ("cuda:0",)


def test_gloo_asked_for_beside_gpus_runs_on_the_cpu() -> None:
    assert choose(3, "gloo", gpu_count=1).devices == ("cpu",) * 3


def test_a_torch_without_nccl_runs_on_the_cpu_and_says_so() -> None:
    chosen = choose(gpu_count=2, available={"gloo"})
    assert chosen.devices == ("cpu", "cpu")
    assert chosen.note.startswith("this torch has no NCCL: the ranks run on the CPU, the 2 GPUs")


@pytest.mark.parametrize(("cores", "ranks", "threads"), [(8, 3, 2), (2, 4, 1), (1, 1, 1)])
def test_ranks_share_the_cores(cores: int, ranks: int, threads: int) -> None:
    assert choose(ranks, core_count=cores).threads == threads


@pytest.mark.parametrize(("given", "threads"), [("3", 3), ("3,2", 3), (" 5", 5), ("x", 4), ("", 4)])
def test_the_users_own_thread_count_stands(given: str, threads: int) -> None:
    assert choose(environ={"OMP_NUM_THREADS": given}).threads == threads


@pytest.mark.parametrize("backend", [None, "auto", "nccl"])
def test_more_ranks_than_gpus_shows_the_whole_equation(backend: str | None) -> None:
    with pytest.raises(SetupError) as caught:
        choose(4, backend, gpu_count=2, environ={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert "ranks (4) <= visible GPUs (2)" in caught.value.cause
    assert "-n 2" in caught.value.fix
    assert "--backend gloo" in caught.value.fix
    assert caught.value.context == "CUDA_VISIBLE_DEVICES is '0,1'"


def test_nccl_without_a_gpu_is_refused() -> None:
    with pytest.raises(SetupError, match=r"no GPU is visible"):
        choose(backend="nccl")


def test_a_backend_that_torch_lacks_is_refused() -> None:
    with pytest.raises(SetupError, match=r"--backend nccl: .* without nccl \(it has: gloo\)"):
        choose(backend="nccl", gpu_count=1, available={"gloo"})
    with pytest.raises(SetupError, match="it has: none"):
        choose(available=set())


@pytest.mark.parametrize("nproc", [0, -3])
def test_no_ranks_are_refused(nproc: int) -> None:
    with pytest.raises(UsageError, match=f"-n/--nproc {nproc}: at least 1"):
        choose(nproc)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(UsageError, match="--backend mpi: not one of auto, nccl or gloo"):
        choose(backend="mpi")


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, ("0", "1", "2", "3")),
        ("", ()),
        ("-1", ()),
        ("0,1", ("0", "1")),
        ("3, 1", ("3", "1")),
        ("0,-1,2", ("0",)),
        ("0,9,1", ("0",)),
        ("1,1", ()),
        ("GPU-ab", ("GPU-ab12",)),
        ("GPU-a", ()),
        ("GPU-ff", ()),
        ("MIG-1,MIG-2", ("MIG-1",)),
        ("NoDevFiles", ()),
    ],
)
def test_reads_cuda_visible_devices_as_cuda_does(value: str | None, seen: tuple[str, ...]) -> None:
    assert visible_devices(value, 4, ["GPU-ab12", "GPU-ac34"]) == seen


def test_a_uuid_is_believed_where_none_are_known() -> None:
    assert visible_devices("GPU-x,GPU-y", 2) == ("GPU-x", "GPU-y")


def test_ranks_find_torchruns_variables() -> None:
    found = rank_environment(1, 4, master_addr="127.0.0.1", master_port=29500, run_id="s")
    assert (
        found
        | {
            "RANK": "1",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "4",
            "GROUP_RANK": "0",
            "NODE_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }
        == found
    )


def test_a_rank_of_a_second_node_counts_from_zero() -> None:
    found = rank_environment(
        5,
        8,
        master_addr="a",
        master_port=1,
        run_id="s",
        local_rank=1,
        local_world_size=4,
        node_rank=1,
        node_count=2,
    )
    assert (found["RANK"], found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == ("5", "1", "4")
    assert (found["GROUP_RANK"], found["GROUP_WORLD_SIZE"]) == ("1", "2")
