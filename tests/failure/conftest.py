"""The kernel tests' ranks."""

from __future__ import annotations

from tests.kernel.conftest import run, session

__all__ = ["run", "session"]
