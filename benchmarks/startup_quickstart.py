"""The most memory that JupyterLab, the quickstart's notebook and its ranks take together."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from compare import print_rows
from memory import Memory, Started, torch_processes
from server import Server

_NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "quickstart.ipynb"
_INTERVAL_S = 0.3
_MIB = 2**20
_NAMES = ("ddp-guardian", "ddp-forkserver", "ddp-controller")


class Sampler:
    """Reads the memory of all processes at intervals, on a thread of its own.

    Attributes
    ----------
    peak
        What was read when it was most in all.
    samples
        How often it was read.
    """

    def __init__(self, started: Started) -> None:
        self._started = started
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory sampler", daemon=True)
        self.peak: list[Memory] = []
        self.samples = 0

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            memories = self._started.memories()
            self.samples += 1
            if _pss_bytes(memories) > _pss_bytes(self.peak):
                self.peak = memories


def main() -> None:
    """Run the quickstart, and print its peak."""
    with Started() as started:
        started.environment["CUDA_VISIBLE_DEVICES"] = ""
        with Server(started, sys.executable, "jupyterlab") as server, Sampler(started) as sampler:
            shutil.copy(_NOTEBOOK, server.folder)
            kernel_id, page, _ = server.open(_NOTEBOOK.name)
            kernel_pid = server.kernel_pid(kernel_id)
            begin_s = time.perf_counter()
            for cell in _cells():
                page.run(cell)
            took_s = time.perf_counter() - begin_s
            after = started.memories()
    strangers = torch_processes()
    roles = {server.pid: "JupyterLab's server", kernel_pid: "the notebook's kernel"}
    heading = ("MiB", "processes", "PSS at the peak", "private", "PSS at the end")
    print_rows("The quickstart's memory", [heading, *_rows(sampler.peak, after, roles)])
    print(
        f"{sampler.samples} samples, {_INTERVAL_S} s apart; its cells took {took_s:.1f} s."
        " Without the browser."
    )
    if strangers:
        print(f"Processes of others with torch loaded: {strangers}; PSS was less for them.")


def _cells() -> Iterable[str]:
    notebook = json.loads(_NOTEBOOK.read_text())
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(cell["source"])


def _rows(
    peak: Sequence[Memory], after: Sequence[Memory], roles: dict[int, str]
) -> Iterable[tuple[str, ...]]:
    order = (*roles.values(), *_NAMES, "ranks", "others")
    for role in order:
        then, later = (
            [one for one in memories if _role(one, roles) == role] for memories in (peak, after)
        )
        if then or later:
            yield _row(role, then, later)
    yield _row("all", peak, after)


def _row(name: str, then: Sequence[Memory], later: Sequence[Memory]) -> tuple[str, ...]:
    private_mib = sum(one.private_bytes for one in then) / _MIB
    peak_mib, later_mib = (_pss_bytes(memories) / _MIB for memories in (then, later))
    return (name, str(len(then)), f"{peak_mib:.0f}", f"{private_mib:.0f}", f"{later_mib:.0f}")


def _role(memory: Memory, roles: dict[int, str]) -> str:
    if memory.pid in roles:
        return roles[memory.pid]
    if memory.name.startswith("ddp-rank-"):
        return "ranks"
    return memory.name if memory.name in _NAMES else "others"


def _pss_bytes(memories: Iterable[Memory]) -> int:
    return sum(memory.pss_bytes for memory in memories)
