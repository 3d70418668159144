"""The ways to a first collective, in a notebook and from a shell, each from fresh processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
from memory import Started
from notebook import Notebook
from peer_environment import peers_python
from server import Server, free_port
from startup_run import (
    COLLECTIVE,
    IMPORTS,
    STAY,
    TIMEOUT_S,
    Result,
    Run,
    fresh_notebook,
    noted,
    time_script,
)

_QUIET_S = 3.0
_QUIET_POLL_S = 0.2
_BUSY_S = 0.015  # of CPU time between two looks: it imports still
_WORKERS_POLL_S = 0.05

_TORCHRUN = f"""{IMPORTS}
dist.init_process_group("gloo")
{COLLECTIVE}{STAY}
dist.destroy_process_group()
"""
_SPAWN = f"""{IMPORTS}
import sys
import torch.multiprocessing as mp

def work(rank, size):
    dist.init_process_group("gloo", rank=rank, world_size=size)
{textwrap.indent(COLLECTIVE + STAY, "    ")}
    dist.destroy_process_group()

if __name__ == "__main__":
    os.environ |= {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2]}}
    mp.spawn(work, args=(int(sys.argv[1]),), nprocs=int(sys.argv[1]))
"""
_IPYPARALLEL = """
import ipyparallel
cluster = ipyparallel.Cluster(n={ranks}, engines="local")
view = cluster.start_and_connect_sync()[:]
view.block = True
view.scatter("rank", range({ranks}), flatten=True)
view.execute({join!r})
view.execute({collective!r}, silent=False).display_outputs()
"""
_ACCELERATE = f"""{IMPORTS}
from accelerate import Accelerator, notebook_launcher

def work():
    Accelerator(cpu=True)
{textwrap.indent(COLLECTIVE + STAY, "    ")}
"""
_LIGHTNING = f"""{IMPORTS}
from lightning.fabric import Fabric

def work(fabric):
{textwrap.indent(COLLECTIVE + STAY, "    ")}
"""
_JOIN = f"""{IMPORTS}
dist.init_process_group("gloo")
"""

Way = Callable[[int], Result]


def import_torch() -> float:
    """Return the seconds that ``import torch`` takes in a fresh interpreter."""
    begin_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True, timeout=TIMEOUT_S)
    return time.perf_counter() - begin_s


# ---- ddp_magic


def ddp_cold(ranks: int) -> Result:
    """Time ``%load_ext`` and the first cell, sent at once to a fresh kernel."""
    with fresh_notebook() as (run, notebook):
        took_s = notebook.run("%load_ext ddp_magic", _ddp_cell(ranks))
        return noted(run, notebook, ranks, took_s)


def ddp_warm(ranks: int) -> Result:
    """Time the first cell, when ``%load_ext`` was run long before."""
    with fresh_notebook() as (run, notebook):
        notebook.run("%load_ext ddp_magic")
        _await_quiet(run)
        return noted(run, notebook, ranks, notebook.run(_ddp_cell(ranks)))


def ddp_restart(ranks: int) -> Result:
    """Time ``%ddp restart`` and a cell, sent at once."""
    with fresh_notebook() as (run, notebook):
        notebook.run("%load_ext ddp_magic", _ddp_cell(ranks))
        before = run.ranks(ranks, lambda: notebook.texts)
        took_s = notebook.run("%ddp restart", _ddp_cell(ranks))
        result = noted(run, notebook, ranks, took_s)
        if before & {rank.pid for rank in result.footprint.ranks}:
            raise RuntimeError("The ranks were not restarted.")
        return result


# ---- from a shell


def torchrun(ranks: int) -> Result:
    """Time ``torchrun`` with a script."""
    launch = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    return time_script(ranks, _TORCHRUN, launch=launch)


def spawn(ranks: int) -> Result:
    """Time a script that calls ``torch.multiprocessing.spawn``."""
    return time_script(ranks, _SPAWN, arguments=(str(ranks), str(free_port())))


# ---- other packages, in a notebook


def ipyparallel(ranks: int) -> Result:
    """Time one cell that starts a cluster, joins its engines by hand, and has them work."""
    with fresh_notebook() as (run, notebook):
        place = f"init_method='file://{run.folder}/store', rank=rank, world_size={ranks}"
        join = f"{IMPORTS}dist.init_process_group('gloo', {place})"
        cell = _IPYPARALLEL.format(ranks=ranks, join=join, collective=COLLECTIVE)
        result = noted(run, notebook, ranks, notebook.run(cell))
        notebook.run("cluster.stop_cluster_sync()")
        return result


def accelerate(ranks: int) -> Result:
    """Time one cell with ``notebook_launcher``, until the result is on the page."""
    call = f"notebook_launcher(work, num_processes={ranks}, use_port='{free_port()}')"
    return _forking(ranks, _ACCELERATE + call)


def lightning(ranks: int) -> Result:
    """Time one cell with Lightning Fabric's strategy for notebooks, until the result is there."""
    fabric = f"Fabric(accelerator='cpu', devices={ranks}, strategy='ddp_notebook')"
    return _forking(ranks, f"{_LIGHTNING}{fabric}.launch(work)")


def nbdistributed(ranks: int) -> Result:
    """Time ``%load_ext`` and ``%dist_init``, and a cell as soon as the workers have connected.

    A cell that is sent before never reaches them, and fails after 30 s.
    """
    with fresh_notebook(peers_python()) as (run, notebook):
        begin_s = time.perf_counter()
        notebook.run("%load_ext nbdistributed", f"%dist_init -n {ranks}")
        _await_workers(run, notebook, ranks)
        notebook.run(IMPORTS + COLLECTIVE)
        # Not ended by %dist_shutdown: that has code to kill every process of such a name.
        return noted(run, notebook, ranks, time.perf_counter() - begin_s)


def jupyter_distributed(ranks: int) -> Result:
    """Time the change of a notebook's processes from one to several, and a cell."""
    with Run() as run, Server(run, peers_python(), "jupyter_server") as server:
        kernel_id, page, client = server.open("untitled.ipynb")
        path = f"/jupyter-distributed/kernels/{kernel_id}"
        server.ask("POST", path, {"world_size": 1})  # as its page does with every notebook
        begin_s = time.perf_counter()
        server.ask("POST", path, {"world_size": ranks})
        client.wait_for_ready(timeout=TIMEOUT_S)
        page.run(_JOIN + COLLECTIVE)
        took_s = time.perf_counter() - begin_s
        pids = run.ranks(ranks, lambda: page.texts)
        kernel = server.kernel_pid(kernel_id)
        return Result(took_s, run.footprint(pids, kernel, apart=[server.pid]))


WAYS: dict[str, Way] = {
    "ddp_magic-cold": ddp_cold,
    "ddp_magic-warm": ddp_warm,
    "ddp_magic-restart": ddp_restart,
    "torchrun": torchrun,
    "spawn": spawn,
    "ipyparallel": ipyparallel,
    "accelerate": accelerate,
    "lightning": lightning,
    "jupyter-distributed": jupyter_distributed,
    "nbdistributed": nbdistributed,
}


def _ddp_cell(ranks: int) -> str:
    return f"%%ddp -n {ranks}\n{IMPORTS}{COLLECTIVE}"


def _forking(ranks: int, cell: str) -> Result:
    """Time a cell that makes its ranks and ends with them, until their result is on the page."""
    with fresh_notebook(peers_python()) as (run, notebook):
        begin_s = time.perf_counter()
        notebook.begin(cell)
        notebook.end(f"sum {ranks}")
        result = noted(run, notebook, ranks, time.perf_counter() - begin_s)
        run.leave()
        notebook.end()
        return result


def _await_quiet(run: Started) -> None:
    """Wait until the fork server has been idle for a while."""
    spent_s, quiet_since_s = 0.0, time.monotonic()
    deadline_s = quiet_since_s + TIMEOUT_S
    while time.monotonic() < min(deadline_s, quiet_since_s + _QUIET_S):
        time.sleep(_QUIET_POLL_S)
        servers = [one for one in run.processes() if one.name() == "ddp-forkserver"]
        now_s = sum(sum(server.cpu_times()[:2]) for server in servers)
        if now_s - spent_s > _BUSY_S:
            spent_s, quiet_since_s = now_s, time.monotonic()
    if not spent_s:
        raise RuntimeError("%load_ext starts no fork server, so nothing is warm")


def _await_workers(run: Started, notebook: Notebook, count: int) -> None:
    """Wait until so many processes have connected to the notebook's kernel."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        kernel = psutil.Process(notebook.pid).net_connections("tcp")
        heard = {one.laddr.port for one in kernel if one.status == psutil.CONN_LISTEN}
        others = [process for process in run.processes() if process.pid != notebook.pid]
        if sum(bool(heard & _called_ports(process)) for process in others) == count:
            return
        time.sleep(_WORKERS_POLL_S)
    raise RuntimeError(f"Not all workers connected: {notebook.texts}")


def _called_ports(process: psutil.Process) -> set[int]:
    """Return the ports to which a process has connections."""
    connections: list[Any] = []
    with suppress(psutil.NoSuchProcess):
        connections = process.net_connections("tcp")
    return {one.raddr.port for one in connections if one.status == psutil.CONN_ESTABLISHED}
