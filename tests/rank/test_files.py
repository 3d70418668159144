"""`torch.save` of all ranks to one path: whoever reads, reads a whole file."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ddp_magic.rank.files import AtomicSave
from tests.rank.harness import run_on_ranks


@pytest.fixture
def atomic() -> Iterator[AtomicSave]:
    atomic = AtomicSave()
    atomic.install()
    yield atomic
    atomic.uninstall()


pytestmark = pytest.mark.usefixtures("atomic")


@pytest.mark.parametrize("kind", [str, Path])
def test_file_is_the_one_that_torch_writes(tmp_path: Path, kind: type) -> None:
    (tmp_path / "plain").mkdir()
    torch.save.__wrapped__({"w": torch.ones(3)}, tmp_path / "plain" / "model.pt")  # type: ignore[attr-defined]
    torch.save({"w": torch.ones(3)}, kind(tmp_path / "model.pt"))
    assert (tmp_path / "model.pt").read_bytes() == (tmp_path / "plain" / "model.pt").read_bytes()
    assert zipfile.ZipFile(tmp_path / "model.pt").namelist()[0] == "model/data.pkl"
    assert sorted(os.listdir(tmp_path)) == ["model.pt", "plain"]


def test_relative_path_and_older_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save([1, 2], "list.pt", _use_new_zipfile_serialization=False)
    assert torch.load("list.pt") == [1, 2]


def test_file_like_objects_and_devices_are_written_to(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(1, buffer)
    buffer.seek(0)
    assert torch.load(buffer) == 1
    torch.save(1, "/dev/null")
    assert Path("/dev/null").is_char_device()


def test_link_stays_a_link_and_rights_stay(tmp_path: Path) -> None:
    target = tmp_path / "epoch-1.pt"
    torch.save(1, target)
    target.chmod(0o640)
    (tmp_path / "latest.pt").symlink_to("epoch-1.pt")
    torch.save(2, tmp_path / "latest.pt")
    assert (tmp_path / "latest.pt").is_symlink()
    assert torch.load(target) == 2
    assert target.stat().st_mode & 0o777 == 0o640


def test_new_file_has_the_usual_rights(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    torch.save(1, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_failed_save_leaves_the_former_file(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(1, path)
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        torch.save(lambda: None, path)
    assert torch.load(path) == 1
    assert os.listdir(tmp_path) == ["model.pt"]


def test_errors_are_torch_s_own(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.save(1, tmp_path / "missing" / "model.pt")
    with pytest.raises((RuntimeError, OSError)):
        torch.save(1, tmp_path)


@pytest.mark.parametrize("name", ["x", "x.npy"])
def test_numpy_saves_where_it_does(tmp_path: Path, name: str) -> None:
    np.save(str(tmp_path / name), np.arange(3))
    np.savez(tmp_path / "a", np.arange(3), named=np.arange(2))
    np.savez_compressed(file=tmp_path / "b.npz", x=np.arange(3))
    assert sorted(os.listdir(tmp_path)) == ["a.npz", "b.npz", "x.npy"]
    assert np.load(tmp_path / "x.npy").tolist() == [0, 1, 2]
    assert sorted(np.load(tmp_path / "a.npz")) == ["arr_0", "named"]
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3))
    assert np.load(io.BytesIO(buffer.getvalue())).tolist() == [0, 1, 2]


def test_failed_numpy_save_leaves_the_former_file(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(3))
    with pytest.raises(ValueError, match="Object arrays"):
        np.save(path, np.array([object()]), allow_pickle=False)
    assert np.load(path).tolist() == [0, 1, 2]
    assert os.listdir(tmp_path) == ["x.npy"]


def test_uninstall(atomic: AtomicSave) -> None:
    replaced = torch.save
    atomic.uninstall()
    assert torch.save is replaced.__wrapped__  # type: ignore[attr-defined]
    assert torch.serialization.save is torch.save


def test_every_rank_saves_and_loads_one_path(tmp_path: Path) -> None:
    cell = f"""
import torch
from ddp_magic.rank.files import AtomicSave
AtomicSave().install()
path = {str(tmp_path / "model.pt")!r}
loaded = []
for step in range(20):
    torch.save(torch.full((50_000,), float(step)), path)
    loaded.append(torch.load(path).unique().numel())
"""
    for rank in run_on_ranks(2, cell, collect=("loaded",)):
        assert rank["loaded"] == [1] * 20
    assert os.listdir(tmp_path) == ["model.pt"]
