"""One run to a first collective: what every rank does, and what is noted of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from memory import Footprint, Started
from notebook import Notebook

TIMEOUT_S = 90.0
_POLL_S = 0.02
_NOTES_TIMEOUT_S = 2.0

IMPORTS = """
import os
import torch
import torch.distributed as dist
"""
# Rank 0 prints the result, and every rank notes it with its process id.
COLLECTIVE = """
ones = torch.ones(1)
dist.all_reduce(ones)
with open(f"{os.environ['BENCHMARK_FOLDER']}/rank-{dist.get_rank()}", "w") as file:
    print(os.getpid(), int(ones), file=file)
if dist.get_rank() == 0:
    print(f"sum {int(ones)}", flush=True)
"""
# What does not live from cell to cell has to be held, or its memory could not be read.
STAY = """
import time
while not os.path.exists(f"{os.environ['BENCHMARK_FOLDER']}/leave"):
    time.sleep(0.05)
"""


@dataclass(frozen=True)
class Result:
    """What one run gave.

    Attributes
    ----------
    took_s
        From the user's action to the collective's result.
    footprint
        The memory right after it.
    """

    took_s: float
    footprint: Footprint


class Run(Started):
    """What one run starts."""

    def __init__(self) -> None:
        super().__init__()
        self.environment["BENCHMARK_FOLDER"] = self.folder

    def ranks(self, count: int, said: Callable[[], object]) -> set[int]:
        """Return the process ids of all ranks.

        Raises
        ------
        RuntimeError
            A rank has no result, or a wrong one; with what was ``said`` instead.
        """
        deadline_s = time.monotonic() + _NOTES_TIMEOUT_S
        while len(notes := self._notes()) < count and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        right = [pid for pid, result in notes if result == count]
        if len(right) != count:
            raise RuntimeError(f"{len(right)} of {count} ranks have the result: {said()}")
        return set(right)

    def leave(self) -> None:
        """Have those end that stay until they are told to."""
        Path(self.folder, "leave").touch()

    def _notes(self) -> list[list[int]]:
        texts = [path.read_text() for path in Path(self.folder).glob("rank-*")]
        return [[int(word) for word in text.split()] for text in texts if text.endswith("\n")]


@contextmanager
def fresh_notebook(python: str = sys.executable) -> Iterator[tuple[Run, Notebook]]:
    """Give a fresh kernel, in an environment that has been activated, as it were."""
    with Run() as run:
        run.environment["PATH"] = f"{Path(python).parent}:{run.environment['PATH']}"
        with Notebook(python, run.environment, run.folder) as notebook:
            yield run, notebook


def noted(run: Run, notebook: Notebook, ranks: int, took_s: float) -> Result:
    """Return a run's result, the collective having been checked on every rank and on the page."""
    pids = run.ranks(ranks, lambda: notebook.texts)
    if f"sum {ranks}" not in "".join(notebook.texts.values()):
        raise RuntimeError(f"The result is not on the page: {notebook.texts}")
    return Result(took_s, run.footprint(pids, notebook.pid))


def time_script(
    ranks: int, text: str, launch: Sequence[str] = (), arguments: Sequence[str] = ()
) -> Result:
    """Time a script from its launch to its printing the result.

    Parameters
    ----------
    launch, arguments
        What the interpreter's command line has before and after the script.
    """
    with Run() as run:
        script, output, errors = (Path(run.folder, name) for name in ("script.py", "out", "err"))
        script.write_text(text)
        with output.open("wb") as out, errors.open("wb") as err:
            begin_s = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, *launch, str(script), *arguments],
                env=run.environment,
                cwd=run.folder,
                stdout=out,
                stderr=err,
            )
        try:
            while f"sum {ranks}\n" not in output.read_text():
                if process.poll() is not None or time.perf_counter() - begin_s > TIMEOUT_S:
                    raise RuntimeError(f"The script printed no result: {errors.read_text()}")
                time.sleep(_POLL_S)
            took_s = time.perf_counter() - begin_s
            return Result(took_s, run.footprint(run.ranks(ranks, errors.read_text)))
        finally:
            run.leave()
            process.wait(TIMEOUT_S)
