"""How long the prompt takes to come back when something goes wrong, and whether all still works."""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from compare import print_rows
from notebook import Page
from peer_environment import peers_python
from server import Server
from startup_run import Run, fresh_notebook

_PATIENCE_S = 40.0  # how long a prompt is waited for
_MARK_PATIENCE_S = 5.0
_SETTLE_S = 0.5  # in which ranks come to where they are to be stopped
_ROUNDS = 5
_PEER_ROUNDS = 1
_MARK = re.compile(r"FAULT ([\d.]+)")

_SETUP = """
import os, signal, time
import torch, torch.nn as nn, torch.distributed as dist
def me(): return dist.get_rank()
def mark(): print("FAULT", time.time(), flush=True)
def work(): time.sleep(0.3)
"""
_OURS = "net = nn.Linear(64, 64)\n"
_BY_HAND = "net = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))\n"
_TRAIN = "def train(): net(torch.ones(8, 64)).sum().backward()\nfor _ in range(3): train()\n"
_CHECK = "total = torch.ones(1); dist.all_reduce(total); print('sum', int(total))"


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes
    ----------
    code
        A cell in which it does; it prints when, or from when on Stop may be pressed.
    stop
        Whether Stop is pressed.
    aim
        Seconds that it may take under ``%%ddp``.
    kills
        Whether a rank is lost.
    """

    name: str
    code: str
    aim: str
    stop: bool = False
    kills: bool = False


_RAISE = "if me() == 1:\n    work(); mark(); raise ValueError('bad sample')\n"
_SLEEP = "if me() == 1:\n    mark(); time.sleep(600)\n"
_KILL = "if me() == 1:\n    work(); mark(); os.kill(os.getpid(), signal.SIGKILL)\n"
_REDUCE = "dist.all_reduce(torch.ones(4))"
_LEAVE = "if me() == 1:\n    work(); mark()\nelse: dist.barrier()"
_OTHER_CALL = "work()\nif me() == 1:\n    mark(); dist.barrier()\nelse: " + _REDUCE
_OTHER_SIZE = "work()\nif me() == 1: mark()\ndist.all_reduce(torch.ones(4 + me()))"
_LOOP = "mark()\nwhile True: time.sleep(0.01)"
FAULTS = (
    Fault("one raises, the others are in all_reduce", _RAISE + _REDUCE, "≤ 1"),
    Fault("one raises, the others are in backward()", _RAISE + "train()", "≤ 1"),
    Fault("one raises, the others compute", _RAISE + "time.sleep(600)", "≤ 1 + 1 of grace"),
    Fault("one ends the cell, the others are in barrier", _LEAVE, "≤ 1"),
    Fault("calls do not match", _OTHER_CALL, "≤ 1"),
    Fault("sizes do not match", _OTHER_SIZE, "≤ 1"),
    Fault("Stop, in Python", _LOOP, "≤ 1", stop=True),
    Fault("Stop, the others are in all_reduce", _SLEEP + _REDUCE, "≤ 1", stop=True),
    Fault("Stop, the others are in backward()", _SLEEP + "train()", "≤ 1", stop=True),
    Fault("one is killed, the others are in all_reduce", _KILL + _REDUCE, "≤ 0.5", kills=True),
    Fault("one is killed, the others are in backward()", _KILL + "train()", "≤ 0.5", kills=True),
)


@dataclass
class Way:
    """A way to have ranks in a notebook.

    Attributes
    ----------
    page
        Where cells are sent.
    stop
        Presses Stop.
    first
        What a cell on the ranks begins with.
    setup
        The first cell, joined ranks assumed.
    pid
        The process id of the notebook's kernel; 0 where it does not matter.
    """

    page: Page
    stop: Callable[[], None]
    first: str
    setup: str
    pid: int = 0

    def run(self, code: str) -> str:
        """Run a cell on the ranks; return what it printed."""
        self.page.begin(self.first + code)
        return self.finish()

    def finish(self) -> str:
        """Wait for the prompt; return what was printed, and what failed."""
        errors = []
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self.page.end(patience_s=max(0.0, deadline_s - time.monotonic()))
                return "\n".join([*self.page.texts.values(), *errors])
            except RuntimeError as error:  # the cell's own, which is wanted
                errors.append(str(error))


@dataclass(frozen=True)
class Outcome:
    """What came of a fault: seconds to the prompt, None if it did not come, and what then works."""

    took_s: float | None
    works: bool
    heal_s: float | None = None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    options = parser.parse_args()
    found: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    names = ["%%ddp", *options.peers]
    for name in names:
        for _ in range(_PEER_ROUNDS if name in PEERS else options.rounds):
            for fault in FAULTS:
                outcome = measure(WAYS[name], fault, options.ranks)
                found[name, fault.name].append(outcome)
                print(f"{name}: {fault.name}: {outcome}", file=sys.stderr, flush=True)
    rows = [("seconds to the prompt", "aim", *names)]
    rows += [
        (fault.name, fault.aim, *(_told(found[name, fault.name]) for name in names))
        for fault in FAULTS
    ]
    heals = [one.heal_s for fault in FAULTS for one in found["%%ddp", fault.name] if one.heal_s]
    if heals:
        healed = f"{statistics.median(heals):.2f}, at most {max(heals):.2f}"
        rows.append(("%ddp heal", "≤ 3", healed, *[""] * len(options.peers)))
    print_rows(f"{options.ranks} ranks, when something goes wrong", rows)
    print(f"Medians of {options.rounds} rounds ({_PEER_ROUNDS} of peers), in brackets the longest.")
    print(f"'broken': the next cell's collective fails, or does not end in {_PATIENCE_S:g} s.")


def measure(way: Callable[[int], AbstractContextManager[Way]], fault: Fault, ranks: int) -> Outcome:
    """Have one fault in fresh processes."""
    with way(ranks) as notebook:
        said = notebook.run(notebook.setup + _CHECK)
        if f"sum {ranks}" not in said:
            raise RuntimeError(f"The ranks do not work: {said}")
        page = notebook.page
        page.begin(notebook.first + fault.code)
        at_s = None
        if fault.stop:
            with contextlib.suppress(TimeoutError, RuntimeError):
                page.end("FAULT", patience_s=_MARK_PATIENCE_S)
            time.sleep(_SETTLE_S)
            at_s = time.time()
            notebook.stop()
        try:
            printed = notebook.finish()
        except TimeoutError:
            return Outcome(None, works=False)
        ended_s = time.time()
        if at_s is None:
            mark = _MARK.search(printed)
            at_s = float(mark[1]) if mark else ended_s
        heal_s = None
        if fault.kills and notebook.first.startswith("%%ddp"):
            heal_s = page.run("%ddp heal")
        try:
            works = f"sum {ranks}" in notebook.run(_CHECK)
        except TimeoutError:
            works = False
        return Outcome(ended_s - at_s, works, heal_s)


# ---- ways


@contextmanager
def ddp(ranks: int) -> Iterator[Way]:
    """Use this package."""
    with fresh_notebook() as (_, notebook):
        notebook.run("%load_ext ddp_magic", f"%ddp start -n {ranks}")
        yield Way(notebook, notebook.stop, "%%ddp\n", _SETUP + _OURS + _TRAIN, notebook.pid)


@contextmanager
def px(ranks: int) -> Iterator[Way]:
    """Use ipyparallel's ``%%px``, its engines having joined a process group."""
    with fresh_notebook() as (run, notebook):
        place = f"init_method='file://{run.folder}/store', rank=rank, world_size={ranks}"
        notebook.run(
            "import ipyparallel\n"
            f"cluster = ipyparallel.Cluster(n={ranks}, engines='local')\n"
            "view = cluster.start_and_connect_sync()[:]\nview.block = True\n"
            f"view.scatter('rank', range({ranks}), flatten=True, block=True)\n"
            "view.activate()"
        )
        notebook.run(
            f"%%px\nimport torch.distributed as dist\ndist.init_process_group('gloo', {place})"
        )
        yield Way(notebook, notebook.stop, "%%px\n", _SETUP + _BY_HAND + _TRAIN)


@contextmanager
def jupyter_distributed(ranks: int) -> Iterator[Way]:
    """Use jupyter-distributed, whose cells run on all ranks."""
    with Run() as run, Server(run, peers_python(), "jupyter_server") as server:
        kernel_id, page, client = server.open("untitled.ipynb")
        path = f"/jupyter-distributed/kernels/{kernel_id}"
        server.ask("POST", path, {"world_size": 1})
        server.ask("POST", path, {"world_size": ranks})
        client.wait_for_ready(timeout=_PATIENCE_S)
        page.run("import torch.distributed as dist\ndist.init_process_group('gloo')")

        def stop() -> None:
            server.ask("POST", f"/api/kernels/{kernel_id}/interrupt", {})

        yield Way(page, stop, "", _SETUP + _BY_HAND + _TRAIN)


PEERS = {"%%px": px, "jupyter-distributed": jupyter_distributed}
WAYS = {"%%ddp": ddp, **PEERS}


def _told(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return ""
    took_s = [one.took_s for one in outcomes if one.took_s is not None]
    if len(took_s) < len(outcomes):
        return f"> {_PATIENCE_S:g}"
    longest = f" ({max(took_s):.2f})" if len(took_s) > 1 else ""
    works = "" if all(one.works for one in outcomes) else ", broken"
    return f"{statistics.median(took_s):.2f}{longest}{works}"


if __name__ == "__main__":
    main()
