"""Half an hour of random faults in one training session: what survives, what leaks, what grows."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from dataclasses import dataclass, field

import psutil
from faults import FAULTS, Fault, Way, ddp

_MIB = 2**20
_MORE = (
    Fault("sys.exit", "import sys\nif me() == 1:\n    mark(); sys.exit(3)\ntrain()", ""),
    Fault("os._exit", "if me() == 1:\n    mark(); os._exit(1)\ntrain()", "", kills=True),
    Fault(
        "a crash",
        "if me() == 1:\n    mark(); os.kill(os.getpid(), signal.SIGSEGV)\ntrain()",
        "",
        kills=True,
    ),
    Fault("too much memory", "if me() == 1:\n    mark(); torch.empty(2**50)\ntrain()", ""),
    Fault("a backward fewer", "mark()\nfor _ in range(3 - me()): train()", ""),
    Fault("Stop, in a flood", "mark()\nwhile True: print('x' * 200)", "", stop=True),
    Fault(
        "swallowed",
        "for _ in range(3 + me()):\n    try: dist.all_reduce(torch.ones(4))\n"
        "    except RuntimeError: pass\nmark()",
        "",
    ),
)
# IPython keeps all that cells have shown, which a flood makes megabytes of.
_FORGET = "getattr(get_ipython().history_manager, 'outputs', {}).clear()"
# What must be there after each fault, and go on from where it was.
_KEEP = """
keep = ["mine", {"rows": list(range(1000))}]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
adam = torch.optim.Adam(model.parameters(), 1e-3)
steps = 0
def go_on():
    global steps
    for _ in range(5):
        adam.zero_grad(); model(torch.randn(8, 16)).pow(2).mean().backward(); adam.step()
        steps += 1
go_on()
"""
_GO_ON = """
lost = [n for n in ("keep", "model", "adam", "steps", "go_on") if n not in globals()]
if not lost and (keep[0] != "mine" or len(keep[1]["rows"]) != 1000): lost = ["keep"]
own = adam.param_groups[0]["params"] if not lost else []
if not lost and own[0] is not next(model.parameters()): lost = ["adam"]
if not lost: go_on()
flat = torch.cat([p.detach().flatten() for p in model.parameters()])
alike = all(torch.equal(flat, other) for other in ddp.gather(flat))
print("REPORT", ddp.gather((lost, steps)), alike)
"""


@dataclass
class Tally:
    """What has been seen."""

    faults: int = 0
    survived: int = 0
    lost: int = 0
    apart: int = 0
    leaked: int = 0
    kernel_mib: list[float] = field(default_factory=list)
    ranks_mib: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def main() -> None:
    """Run, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen = random.Random(options.seed)
    tally = Tally()
    with ddp(options.ranks) as notebook:
        notebook.run(notebook.setup)
        notebook.run(_KEEP)
        until_s = time.monotonic() + 60 * options.minutes
        steps = 5
        count = len(_descendants(notebook))
        while time.monotonic() < until_s:
            fault = chosen.choice((*FAULTS, *_MORE))
            steps += 5
            _endure(notebook, fault, options.ranks, steps, tally)
            tally.leaked += max(0, _settled(notebook, count) - count)
            _weigh(notebook, tally)
            print(f"{tally.survived}/{tally.faults} {fault.name}", flush=True)
    _print(tally, options.ranks)


def _endure(notebook: Way, fault: Fault, ranks: int, steps: int, tally: Tally) -> None:
    """Have one fault; see that all is there and goes on."""
    tally.faults += 1
    page = notebook.page
    page.begin(notebook.first + fault.code)
    try:
        if fault.stop:
            page.end("FAULT")
            notebook.stop()
        notebook.finish()
        if fault.kills:
            page.run("%ddp heal")
        report = notebook.run(_GO_ON)
    except (RuntimeError, TimeoutError) as error:
        tally.failures.append(f"{fault.name}: {error}")
        return
    expected = f"REPORT {[([], steps)] * ranks} True"
    if expected in report:
        tally.survived += 1
    else:
        tally.lost += "REPORT" in report and "True" in report
        tally.apart += "False" in report
        tally.failures.append(f"{fault.name}: {report[-600:]}, expected {expected}")


def _descendants(notebook: Way) -> list[psutil.Process]:
    return psutil.Process(notebook.pid).children(recursive=True)


def _settled(notebook: Way, count: int, patience_s: float = 5.0) -> int:
    """Return how many processes there are, when those that are ending have ended."""
    deadline_s = time.monotonic() + patience_s
    while len(_descendants(notebook)) > count and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return len(_descendants(notebook))


def _weigh(notebook: Way, tally: Tally) -> None:
    notebook.page.run(_FORGET)
    tally.kernel_mib.append(psutil.Process(notebook.pid).memory_full_info().uss / _MIB)
    ranks = [one for one in _descendants(notebook) if one.name().startswith("ddp-rank")]
    tally.ranks_mib.append(statistics.mean(one.memory_full_info().uss for one in ranks) / _MIB)


def _print(tally: Tally, ranks: int) -> None:
    print(f"{ranks} ranks: faults survived {tally.survived} of {tally.faults}")
    print(
        f"variables lost {tally.lost}, processes leaked {tally.leaked}, models apart {tally.apart}"
    )
    for name, sizes in (("kernel", tally.kernel_mib), ("a rank", tally.ranks_mib)):
        quarter = max(1, len(sizes) // 4)
        first, last = (statistics.median(part) for part in (sizes[:quarter], sizes[-quarter:]))
        print(f"private memory of {name}: first quarter {first:.0f} MiB, last {last:.0f} MiB")
    for failure in tally.failures:
        print("FAILED", failure)
    if tally.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
