"""Fixtures of the browser tests: one JupyterLab and one Chromium for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.lab import CHROMIUM_FLAGS, DEADLINE_S, Lab, LabServer, chromium

expect.set_options(timeout=DEADLINE_S * 1000)


# Package scope: Playwright keeps an event loop running in this thread for as long as it lives.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.skip("the browser tests need Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_FLAGS))
        yield launched
        launched.close()


@pytest.fixture(scope="package")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    server = LabServer(tmp_path_factory.mktemp("lab"))
    yield Lab(server, browser)
    server.close()


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Where screenshots go: the directory named by DDP_MAGIC_SHOTS, for people to look at."""
    directory = Path(os.environ.get("DDP_MAGIC_SHOTS", tmp_path))
    directory.mkdir(parents=True, exist_ok=True)
    return directory
