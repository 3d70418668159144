"""Every test is held to leave nothing behind, and browser tests to run where they must."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Generator, Iterator
from multiprocessing.util import get_temp_dir

import pytest

from tests.leaks import RUN_VARIABLE, LeakGuard

_REQUIRE_BROWSER = "DDP_MAGIC_REQUIRE_BROWSER"


@pytest.fixture(scope="session", autouse=True)
def leak_guard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeakGuard]:
    """What outlives the tests' modules is found when the run ends."""
    get_temp_dir()  # removed as this process exits, when the run's folder may have gone already
    folder = str(tmp_path_factory.mktemp("tmp"))  # of this run alone: others may run beside it
    run = uuid.uuid4().hex
    guard = LeakGuard(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv(RUN_VARIABLE, run)
        with guard.check():
            yield guard


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(leak_guard: LeakGuard) -> Iterator[None]:
    """What a fixture of a wider scope keeps alive was there before, so it may stay."""
    with leak_guard.check():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and item.get_closest_marker("browser") and os.environ.get(_REQUIRE_BROWSER):
        report.outcome = "failed"
        report.longrepr = f"{_REQUIRE_BROWSER} is set, but: {report.longrepr}"
    return report
