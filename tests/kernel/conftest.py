"""Real ranks, shared by the tests of a module: a test leaves them ready for the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ddp_magic import Session
from ddp_magic.testing import RecordingView

Run = Callable[..., RecordingView]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    session = Session(nproc=2, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        # ipykernel leaves the file descriptors alone in a process that looks like a test's.
        patch.delenv("PYTEST_CURRENT_TEST", raising=False)
        session.start()
    yield session
    session.stop()


@pytest.fixture
def run(session: Session) -> Run:
    """Run a cell on the ranks and return what was shown."""

    def run_cell(code: str, **options: Any) -> RecordingView:
        view = RecordingView()
        session.run(code, view=view, **options)
        return view

    return run_cell
