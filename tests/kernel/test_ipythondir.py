"""IPython's folder, where the usual one cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_magic.kernel.ipythondir import ipython_environment


def test_the_usual_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("IPYTHONDIR", raising=False)
    assert ipython_environment(tmp_path / "session") == {}
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    assert ipython_environment(tmp_path / "session") == {}


def test_where_it_cannot_be_the_sessions_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", "/proc/none/ipython")
    assert ipython_environment(Path("/tmp/session")) == {"IPYTHONDIR": "/tmp/session/ipython"}
