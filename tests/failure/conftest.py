"""Ranks for the tests of failures, as many as a test says, in one kernel for each number."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.failure.world import TRAINING, Ranks
from tests.kernel.conftest import run, session
from tests.notebook.conftest import kernel
from tests.rank.harness import run_single

__all__ = ["run", "session"]  # the kernel tests' ranks


@pytest.fixture(scope="module", params=[2])
def world(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """The ranks that a module shares; by default two."""
    with kernel() as notebook:
        assert notebook.run(f"%ddp start -n {request.param}").status == "ok"
        yield Ranks(notebook, request.param)


@pytest.fixture
def ranks(world: Ranks) -> Ranks:
    """The same, set up; made anew if the test before left them in pieces."""
    try:
        world.set_up()
    except AssertionError:
        world.made_anew()
    return world


@pytest.fixture(scope="session")
def one_process() -> tuple[list[float], list[float]]:
    """What training gives in one process, without this package: as set up, and trained on."""
    cell = f"{TRAINING}first = weights(); train(); second = weights()"
    found = run_single(cell, collect=("first", "second"))
    return found["first"], found["second"]
