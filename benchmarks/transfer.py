"""How long ``%ddp push`` and ``%ddp pull`` take, against ipyparallel's on the same engines."""

from __future__ import annotations

from functools import partial

from compare import Comparison, Metric, alternate, print_table
from notebook import Notebook

_RANKS = 4
_BYTES = 10**9
_ROUNDS = 5
_AIM = "≤ 0.2"
_SMALL_ROUNDS = 40
_SMALL_AIM = "≤ 1"

_SET_UP = f"""
%load_ext ddp_magic
%ddp start -n {_RANKS}
import json, time
import numpy as np

session = get_ipython().magics_manager.registry["DdpMagics"].session
view = session._ranks().client[:]
view.block = True
big, part, small = np.ones({_BYTES} // 8), np.ones({_BYTES // _RANKS} // 8), 1.0

def timed(*actions):
    begin_s, took_s = time.perf_counter(), []
    for action in actions:
        action()
        took_s.append(time.perf_counter() - begin_s)
    print(json.dumps(took_s))

def ms(action):
    begin_s = time.perf_counter()
    action()
    print(json.dumps([1000 * (time.perf_counter() - begin_s)]))

def read_all():
    view.execute("total = big.sum()")
"""
_BOTH = ("session", "view")


def main() -> None:
    """Measure and print."""
    with Notebook() as notebook:
        notebook.run(_SET_UP)
        comparisons = [*_push(notebook), *_pull(notebook), *_small(notebook)]
    print_table(f"Moving variables, {_RANKS} ranks", "push, pull", comparisons)


def _push(notebook: Notebook) -> list[Comparison]:
    pushes = (f"timed(lambda: {who}.push({{'big': big}}), read_all)" for who in _BOTH)
    ours, baseline = (partial(notebook.value, push) for push in pushes)
    metrics = [
        Metric(f"push {_BYTES / 1e9:g} GB to all", "s", _AIM),
        Metric("and read all of it on each", "s", _AIM),
    ]
    return alternate(metrics, ours, baseline, rounds=_ROUNDS)


def _pull(notebook: Notebook) -> list[Comparison]:
    notebook.run("session.push({'part': part})")
    pulls = (f"timed(lambda: {who}.pull('part'))" for who in _BOTH)
    ours, baseline = (partial(notebook.value, pull) for pull in pulls)
    metric = Metric(f"pull {_BYTES / _RANKS / 1e9:g} GB from each", "s", _AIM)
    return alternate([metric], ours, baseline, rounds=_ROUNDS)


def _small(notebook: Notebook) -> list[Comparison]:
    comparisons = []
    for what, action in (("push", "push({'small': small})"), ("pull", "pull('small')")):
        ours, baseline = (partial(notebook.value, f"ms(lambda: {who}.{action})") for who in _BOTH)
        metric = Metric(f"{what} a number", "ms", _SMALL_AIM)
        comparisons += alternate([metric], ours, baseline, rounds=_SMALL_ROUNDS)
    return comparisons


if __name__ == "__main__":
    main()
