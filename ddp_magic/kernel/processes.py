"""Ends processes that this one started, with all that they started themselves."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil

_KILL_GRACE_S = 3.0


def end_processes(roots: Iterable[int], term_grace_s: float) -> None:
    """End processes and their descendants.

    Parameters
    ----------
    term_grace_s
        How long they have to end by themselves before they are killed; 0: killed at once.
    """
    alive = [process for root in roots for process in _tree(root)]
    if term_grace_s > 0:
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        _, alive = psutil.wait_procs(alive, timeout=term_grace_s)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=_KILL_GRACE_S)


def _tree(root: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
