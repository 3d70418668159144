"""How long it takes to look at variables: ``%ddp vars``, ``%ddp diff`` and ``%%ddp --check``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from compare import print_rows

from ddp_magic import Session
from ddp_magic.testing import RecordingView

_ROUNDS = 5
_VARS_RANKS, _DIFF_RANKS = 8, 4
_NAMES = 200
_MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(1000, 1000) for _ in range(100)))  # 100.1 M parameters
"""
_VARS = f"""
numbers = {{f"value_{{i}}": i / 7 for i in range({_NAMES})}}
globals().update(numbers)
tensor = torch.zeros(2**28)  # 1 GiB
tensor[::4096] = 1
"""
_DRIFT = "with torch.no_grad(): model[50].weight[3, 4] += rank"
_NOISE = """
torch.manual_seed(rank)
with torch.no_grad():
    for p in model.parameters():
        p += 1e-3 * torch.randn(p.shape)
"""
_TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model(torch.ones(2, 1000)).square().mean().backward()
optimizer.step()
"""


def main() -> None:
    """Measure and print."""
    rows = [("", "median", "fastest", "slowest", "aim"), *_vars(), *_diff()]
    print_rows("Looking at variables", rows)


def _vars() -> list[tuple[str, ...]]:
    with Session(nproc=_VARS_RANKS, seed=0) as session:
        session.run(_MODEL + _VARS, view=RecordingView(), shard=False)
        what = f"vars: {_VARS_RANKS} ranks, {_NAMES} names, a GiB, 100 M parameters"
        found = session.vars()
        if len(found) != _NAMES + 3 or found.differing:
            raise RuntimeError(f"{found.headline}: not what was set")
        return [_row(what, "< 1 s", session.vars)]


def _diff() -> list[tuple[str, ...]]:
    with Session(nproc=_DIFF_RANKS, seed=0) as session:

        def run(code: str, **options: bool) -> None:
            session.run(code, view=RecordingView(), **options)

        what = f"diff: {_DIFF_RANKS} ranks, 100 M parameters, "
        run(_MODEL)
        rows = [_row(f"{what}equal", "< 2 s", lambda: session.diff("model"), equal=True)]
        run(_DRIFT, wrap=False)
        rows.append(_row(f"{what}one differs", "< 2 s", lambda: session.diff("model"), equal=False))
        run(_NOISE, wrap=False)
        rows.append(_row(f"{what}all differ", "< 2 s", lambda: session.diff("model"), equal=False))
        run(_MODEL + _TRAIN)
        rows.append(_row(f"empty cell, {_DIFF_RANKS} ranks", "", lambda: run("pass")))
        of_check = f"the same with --check, {_DIFF_RANKS} ranks, 100 M parameters"
        return [*rows, _row(of_check, "", lambda: run("pass", check=True))]


def _row(
    what: str, aim: str, call: Callable[[], object], equal: bool | None = None
) -> tuple[str, ...]:
    """Call it once, then time it; ``equal``: what it is to find."""
    times = []
    for turn in range(_ROUNDS + 1):
        begin_s = time.perf_counter()
        found = call()
        took_s = time.perf_counter() - begin_s
        if equal is not None and bool(found) != equal:
            raise RuntimeError(f"{what}: {found}")
        times += [took_s] if turn else []
    low, high = min(times), max(times)
    return (what, f"{statistics.median(times):.2f} s", f"{low:.2f} s", f"{high:.2f} s", aim)


if __name__ == "__main__":
    main()
