"""Effects on files that all ranks of a cell race for: had once, and done for all."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import shutil
import sys
import textwrap
import threading
import time
import timeit
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch

from ddp_magic.rank.effects import SharedEffects
from ddp_magic.rank.journal import Trace
from tests.rank.harness import run_on_ranks

_PREAMBLE = """
import os, shutil, sys, time, traceback, urllib.request
from pathlib import Path
import torch
import torch.distributed as dist
from ddp_magic.rank.effects import SharedEffects
os.chdir({folder!r})
effects = SharedEffects(Path({private!r}), rank, world_size)
effects.install()
def pause():
    time.sleep(0.001)
"""


def _race(
    folder: Path, code: str, *, ranks: int = 3, rounds: int = 50, cells: int = 1
) -> list[dict[str, Any]]:
    """Run ``code`` on all ranks, ``rounds`` times in each of ``cells`` cells."""
    private, files = folder / "private", folder / "files"
    private.mkdir()
    files.mkdir()
    body = textwrap.indent(textwrap.dedent(code), " " * 8)
    loop = f"""
log = []
for number in range({cells}):
    effects.begin_cell(number)
    for turn in range({rounds}):
        dist.barrier()
{body}
    dist.barrier()
    effects.end_cell()
    dist.barrier()
effects.uninstall()
"""
    preamble = _PREAMBLE.format(folder=str(files), private=str(private))
    found = run_on_ranks(ranks, preamble, loop, collect=("log",))
    cell = {name.split("-")[1] for name in os.listdir(private)}
    assert cell == {str(cells - 1)}, "a journal outlives the next cell"
    return found


@pytest.mark.parametrize(
    "code",
    [
        "os.mkdir(f'd{turn}')",
        "os.makedirs(f'run/{turn}/logs')",
        "Path(f'd{turn}').mkdir()",
        "Path(f'run/{turn}/logs').mkdir(parents=True)",
        "os.mkdir(f'd{turn}'.encode())",
        "os.mkdir(path=f'd{turn}')",
        "shutil.copytree('/etc/apt', f'd{turn}')",
        "os.symlink('/etc', f'd{turn}')",
        "Path(f'd{turn}').symlink_to('/etc')",
    ],
)
def test_every_rank_makes_it(tmp_path: Path, code: str) -> None:
    _race(tmp_path, code)


def test_made_where_missing(tmp_path: Path) -> None:
    code = """
    if not os.path.exists(f"run/{turn}"):
        pause()
        os.makedirs(f"run/{turn}")
    Path(f"run/{turn}/{rank}").touch()
    """
    _race(tmp_path, code)
    assert {len(os.listdir(path)) for path in (tmp_path / "files" / "run").iterdir()} == {3}


@pytest.mark.parametrize(
    "code",
    [
        """
        if os.path.exists("run"):
            pause()
            shutil.rmtree("run")
        os.makedirs("run/logs")
        """,
        """
        shutil.rmtree("run", ignore_errors=True)
        pause()
        os.makedirs("run/logs")
        """,
        """
        try:
            shutil.rmtree("run")
        except FileNotFoundError:
            pass
        Path("run/logs").mkdir(parents=True)
        """,
        """
        if number == turn == 0:
            os.makedirs("run/logs")
            dist.barrier()
        if os.path.exists("run"):
            os.rmdir("run/logs")
            Path("run").rmdir()
        os.makedirs("run/logs")
        """,
    ],
)
@pytest.mark.parametrize(("rounds", "cells"), [(50, 1), (1, 50)])
def test_made_afresh(tmp_path: Path, code: str, rounds: int, cells: int) -> None:
    check = """
    dist.barrier()
    log.append(os.listdir("run"))
    dist.barrier()
    """
    found = _race(
        tmp_path, textwrap.dedent(code) + textwrap.dedent(check), rounds=rounds, cells=cells
    )
    assert [rank["log"] for rank in found] == [[["logs"]] * 50] * 3


def test_what_a_faster_rank_put_there_is_not_removed_by_a_slower(tmp_path: Path) -> None:
    code = """
    time.sleep(0.002 * ((rank + turn) % world_size))
    if os.path.exists("run"):
        shutil.rmtree("run")
    os.makedirs("run")
    Path(f"run/{rank}").touch()
    dist.barrier()
    log.append(sorted(os.listdir("run")))
    """
    for rank in _race(tmp_path, code):
        assert rank["log"] == [["0", "1", "2"]] * 50


@pytest.mark.parametrize("remove", ["os.remove(name)", "os.unlink(name)", "Path(name).unlink()"])
def test_removed_where_there(tmp_path: Path, remove: str) -> None:
    code = f"""
    name = "old.txt"
    if rank == 0:
        Path(name).touch()
    dist.barrier()
    if os.path.exists(name):
        pause()
        {remove}
    assert not os.path.exists(name)
    """
    _race(tmp_path, code)


def test_saved_after_the_former_was_removed(tmp_path: Path) -> None:
    code = """
    from ddp_magic.rank.files import AtomicSave
    if not turn:
        AtomicSave().install()
    time.sleep(0.002 * ((rank + turn) % world_size))
    if os.path.exists("last.pt"):
        pause()
        os.remove("last.pt")
    torch.save(turn, "last.pt")
    assert torch.load("last.pt") == turn
    """
    _race(tmp_path, code)


@pytest.mark.parametrize("save", ["os.remove", "lambda f: os.replace(f, 'moved.pt')"])
def test_each_rank_saves_and_removes_one_path(tmp_path: Path, save: str) -> None:
    code = f"""
    Path("scratch").write_text("x")
    ({save})("scratch")
    dist.barrier()
    assert not os.path.exists("scratch")
    """
    _race(tmp_path, code)


@pytest.mark.parametrize(
    "rename",
    [
        "os.rename(a, b)",
        "os.replace(a, b)",
        "Path(a).rename(b)",
        "Path(a).replace(b)",
        "assert shutil.move(a, b) == b",
    ],
)
@pytest.mark.parametrize("make", ["Path(a).write_text('x')", "Path(a, 'x').mkdir(parents=True)"])
def test_renamed(tmp_path: Path, make: str, rename: str) -> None:
    code = f"""
    a, b = f"a{{turn}}", f"b{{turn}}"
    if rank == 0:
        {make}
    dist.barrier()
    {rename}
    assert os.path.exists(b) and not os.path.exists(a)
    """
    _race(tmp_path, code, rounds=20)


def test_what_one_rank_made_before_a_collective_is_there_for_all(tmp_path: Path) -> None:
    code = """
    if rank == 0:
        os.mkdir("d")
    dist.barrier()
    if rank == 1:
        shutil.rmtree("d")
    dist.barrier()
    assert not os.path.exists("d")
    """
    _race(tmp_path, code)


def test_made_where_missing_and_removed(tmp_path: Path) -> None:
    code = """
    if not os.path.exists("d"):
        pause()
        os.mkdir("d")
    dist.barrier()
    shutil.rmtree("d")
    assert not os.path.exists("d")
    dist.barrier()
    """
    _race(tmp_path, code)


def test_moved_into_a_directory(tmp_path: Path) -> None:
    code = """
    if not os.path.exists("done"):
        pause()
        os.mkdir("done")
    if rank == 0:
        Path(f"a{turn}").touch()
    dist.barrier()
    assert shutil.move(f"a{turn}", "done") == f"done/a{turn}"
    """
    _race(tmp_path, code)
    assert len(os.listdir(tmp_path / "files" / "done")) == 50


def test_folder_made_beside_and_moved(tmp_path: Path) -> None:
    """As `datasets` prepares what it caches."""
    code = """
    time.sleep(0.02 * rank)  # `datasets` has a file lock
    os.makedirs("new", exist_ok=True)
    Path("new/data").write_text("x")
    if os.path.isdir("cache"):
        shutil.rmtree("cache")
    os.rename("new", "cache")
    assert Path("cache/data").read_text() == "x"
    """
    _race(tmp_path, code, ranks=2, rounds=1, cells=20)


def test_rotated(tmp_path: Path) -> None:
    code = """
    from ddp_magic.rank.files import AtomicSave
    if not turn:
        AtomicSave().install()
    if os.path.exists("last.pt"):
        pause()
        os.replace("last.pt", "previous.pt")
    torch.save(turn, "last.pt")
    dist.barrier()
    log.append((torch.load("last.pt"), turn and torch.load("previous.pt")))
    """
    for rank in _race(tmp_path, code):
        assert rank["log"] == [(turn, max(turn - 1, 0)) for turn in range(50)]


def test_what_one_rank_does_twice_fails(tmp_path: Path) -> None:
    code = """
    def fails(kind, act, *args):
        try:
            act(*args)
        except kind as error:
            return traceback.extract_tb(error.__traceback__)[-1].name
    os.mkdir(f"d{turn}")
    log.append(fails(FileExistsError, os.makedirs, f"d{turn}"))
    dist.barrier()
    os.rmdir(f"d{turn}")
    log.append(fails(FileNotFoundError, os.rmdir, f"d{turn}"))
    log.append(fails(FileNotFoundError, shutil.rmtree, f"d{turn}"))
    log.append(fails(FileNotFoundError, os.rename, f"d{turn}", "x"))
    log.append(fails(FileNotFoundError, os.mkdir, "not/there"))
    log.append(fails(IsADirectoryError, os.remove, "/etc"))
    """
    for rank in _race(tmp_path, code):
        assert all(rank["log"])


def test_downloaded_once(tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(bytes(3_000_000))
    code = f"""
    opened = []
    sys.addaudithook(lambda event, args: opened.append(1) if event == "urllib.Request" else None)
    for k in range(10):
        name, headers = urllib.request.urlretrieve({source.as_uri()!r}, f"data{{k}}")
        log.append((name, os.path.getsize(name), headers["Content-Length"]))
    log.append(len(opened))
    """
    found = _race(tmp_path, code, rounds=1)
    logs = [rank["log"][:-1] for rank in found]
    assert logs == [logs[0]] * 3
    assert found[0]["log"][3] == ("data3", 3_000_000, "3000000")
    assert sum(rank["log"][-1] for rank in found) == 10
    assert len(os.listdir(tmp_path / "files")) == 10


def test_downloaded_where_missing_is_never_seen_half(tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(bytes(3_000_000))
    code = f"""
    name = f"data{{turn}}"
    time.sleep(0.0005 * rank)
    if not os.path.exists(name):
        urllib.request.urlretrieve({source.as_uri()!r}, name)
    assert os.path.getsize(name) == 3_000_000
    """
    _race(tmp_path, code)


def test_hub_downloads_once(tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(bytes(1_000_000))
    code = f"""
    inode = set()
    for k in range(10):
        torch.hub.download_url_to_file({source.as_uri()!r}, f"data{{k}}", progress=False)
        log.append(os.stat(f"data{{k}}").st_ino)
    """
    found = _race(tmp_path, code, rounds=1)
    assert all(rank["log"] == found[0]["log"] for rank in found)


def test_download_that_fails_is_tried_by_every_rank(tmp_path: Path) -> None:
    code = """
    try:
        urllib.request.urlretrieve("file:///not/there", "data")
    except urllib.error.URLError:
        log.append("failed")
    dist.barrier()
    """
    found = _race(tmp_path, code, rounds=5)
    assert [rank["log"] for rank in found] == [["failed"] * 5] * 3
    assert os.listdir(tmp_path / "files") == []


def test_unpacked_where_missing_is_never_seen_half(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for k in range(50):
            archive.writestr(f"{k}.txt", "x" * 1000)
    code = """
    folder = f"data{turn}"
    time.sleep(0.001 * rank)
    if not os.path.isdir(folder):
        shutil.unpack_archive('../all.zip', folder)
    log.append({path.stat().st_ino for path in Path(folder).iterdir()})
    """
    found = _race(tmp_path, code, rounds=20)
    assert all(len(inodes) == 50 for inodes in found[0]["log"])
    assert all(rank["log"] == found[0]["log"] for rank in found)


def test_a_long_download_keeps_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "source.bin").touch()
    code = f"""
    begun = time.perf_counter()
    if rank == 0:
        slow = lambda *_: time.sleep(0.5)
        urllib.request.urlretrieve({(tmp_path / "source.bin").as_uri()!r}, "data", slow)
    else:
        time.sleep(0.2)
        os.mkdir("d")
        log.append(time.perf_counter() - begun)
    """
    found = _race(tmp_path, code, ranks=2, rounds=1)
    assert found[1]["log"][0] < 0.4


def test_a_rank_that_dies_with_the_lock_gives_it_back(tmp_path: Path) -> None:
    code = """
    if rank == 0 and not os.fork():
        other = SharedEffects(effects._folder, 1, 2)
        other.begin_cell(number)
        with other._active().locked():
            os._exit(0)
    time.sleep(0.1)
    os.mkdir("d")
    if rank == 0:
        os.wait()
    """
    _race(tmp_path, code, ranks=2, rounds=1)


@pytest.fixture
def torchvision(tmp_path: Path) -> Path:
    """A folder with what has torchvision's helpers, under the names that it has for them."""
    package = tmp_path / "site" / "torchvision" / "datasets"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("from . import datasets\n")
    (package / "__init__.py").write_text("from .mnist import download_and_extract_archive\n")
    (package / "mnist.py").write_text("from .utils import download_and_extract_archive\n")
    helper = """
    calls = 0
    def download_url(url, root, filename=None, md5=None):
        global calls
        calls += 1
    def extract_archive(from_path, to_path=None):
        return to_path
    def download_and_extract_archive(url, root, filename=None, md5=None):
        download_url(url, root)
        return extract_archive(url, root)
    """
    (package / "utils.py").write_text(textwrap.dedent(helper))
    return tmp_path / "site"


@pytest.mark.parametrize("preloaded", [False, True])
def test_torchvision_downloads_once(tmp_path: Path, torchvision: Path, preloaded: bool) -> None:
    code = f"""
    sys.path.insert(0, {str(torchvision)!r})
    if {preloaded}:
        effects.uninstall()
        import torchvision
        effects.install()
        effects.begin_cell(0)
    from torchvision.datasets import download_and_extract_archive, utils
    for k in range(10):
        assert download_and_extract_archive(f"https://host/{{k}}", root="data") == "data"
        utils.download_url(f"https://host/{{k}}", "data")
    log.append(utils.calls)
    """
    found = _race(tmp_path, code, rounds=1)
    assert sum(rank["log"][0] for rank in found) == 20


@pytest.fixture
def effects(tmp_path: Path) -> Iterator[SharedEffects]:
    (tmp_path / "private").mkdir()
    effects = SharedEffects(tmp_path / "private", 0, 2)
    effects.install()
    effects.begin_cell(1)
    yield effects
    effects.uninstall()


@pytest.fixture
def other(tmp_path: Path, effects: SharedEffects) -> Iterator[SharedEffects]:
    """Another rank, whose functions are not installed."""
    other = SharedEffects(tmp_path / "private", 1, 2)
    other.begin_cell(1)
    assert other._active() is not None
    yield other
    other.end_cell()


def _has(other: SharedEffects, kind: str, path: Path | str, result: str | None = None) -> None:
    """Have the other rank write that it made, or removed, a path."""
    journal = other._active()
    assert journal is not None
    with journal.locked():
        journal.note(str(path), kind, result=result)


def _knows(other: SharedEffects, kind: str, path: Path) -> bool:
    """Tell whether the other rank takes a path as made, or removed, by this one."""
    journal = other._active()
    assert journal is not None
    with journal.locked():
        return journal.explains(str(path), kind)


def test_done_once_for_each_time(tmp_path: Path, other: SharedEffects) -> None:
    _has(other, "m", tmp_path / "d")
    (tmp_path / "d" / "e").mkdir(parents=True)
    os.rmdir(tmp_path / "d" / "e")
    _has(other, "m", tmp_path / "d" / "e")
    (tmp_path / "d" / "e").mkdir()
    with pytest.raises(FileExistsError):
        os.mkdir(tmp_path / "d" / "e")


def test_removed_by_another(tmp_path: Path, other: SharedEffects) -> None:
    _has(other, "g", tmp_path / "f")
    (tmp_path / "f").unlink()
    with pytest.raises(FileNotFoundError):
        (tmp_path / "f").unlink()


def test_made_anew_by_another(tmp_path: Path, other: SharedEffects) -> None:
    _has(other, "g", tmp_path / "f")
    (tmp_path / "f").touch()
    _has(other, "m", tmp_path / "f")
    (tmp_path / "f").unlink()
    assert (tmp_path / "f").exists()
    os.replace(tmp_path / "f", tmp_path / "g")
    assert (tmp_path / "f").exists()


def test_made_after_all_that_others_made_and_removed(tmp_path: Path, other: SharedEffects) -> None:
    _has(other, "m", tmp_path / "d")
    _has(other, "g", tmp_path / "d")
    (tmp_path / "d").mkdir()
    journal = other._active()
    assert journal is not None
    with journal.locked():
        assert journal.trace(str(tmp_path / "d")).is_of_others()


def test_put_where_another_removed(tmp_path: Path, other: SharedEffects) -> None:
    _has(other, "g", tmp_path / "f")
    (tmp_path / "new").touch()
    os.replace(tmp_path / "new", tmp_path / "f")
    (tmp_path / "f").unlink()
    assert _knows(other, "m", tmp_path / "f")
    assert _knows(other, "g", tmp_path / "f")


def test_made_by_another_as_by_this_rank(tmp_path: Path, other: SharedEffects) -> None:
    (tmp_path / "d").mkdir()
    _has(other, "m", tmp_path / "d")
    (tmp_path / "d").rmdir()
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("by_another", [False, True])
def test_directory_that_this_rank_counts_on(
    tmp_path: Path, other: SharedEffects, by_another: bool
) -> None:
    os.mkdir.__wrapped__(tmp_path / "d")  # type: ignore[attr-defined]
    _has(other, "m", tmp_path / "d")
    if by_another:
        os.mkdir.__wrapped__(tmp_path / "d" / "e")  # type: ignore[attr-defined]
        _has(other, "m", tmp_path / "d" / "e")
    os.mkdir(tmp_path / "d" / "e")
    shutil.rmtree(tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_removed_after_another_renamed(tmp_path: Path, other: SharedEffects) -> None:
    (tmp_path / "b").touch()
    _has(other, "g", tmp_path / "a")
    _has(other, "m", tmp_path / "b", str(tmp_path / "a"))
    os.rename(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b").unlink()
    assert not (tmp_path / "b").exists()


def test_what_another_rank_has_claimed_is_not_this_ranks(
    tmp_path: Path, other: SharedEffects
) -> None:
    _has(other, "g", tmp_path / "job")
    _has(other, "m", tmp_path / "job.1", str(tmp_path / "job"))
    with pytest.raises(FileNotFoundError):
        os.rename(tmp_path / "job", tmp_path / "job.0")


def test_not_renamed_to_what_another_made_otherwise(tmp_path: Path, other: SharedEffects) -> None:
    (tmp_path / "a").mkdir()
    os.mkdir.__wrapped__(tmp_path / "b")  # type: ignore[attr-defined]
    (tmp_path / "b" / "file").touch()
    _has(other, "m", tmp_path / "b")
    with pytest.raises(OSError, match="not empty"):
        os.rename(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("there", [True, False])
def test_removed_after_another_downloaded(
    tmp_path: Path, other: SharedEffects, there: bool
) -> None:
    (tmp_path / "source").write_text("abc")
    uri, target = (tmp_path / "source").as_uri(), tmp_path / "f"
    _has(other, "m", f"{uri} -> {target}")
    if there:
        target.touch()
        _has(other, "m", target)
    urllib.request.urlretrieve(uri, target)
    assert target.read_text() == ("" if there else "abc")
    target.unlink()
    assert not target.exists()
    assert _knows(other, "m", target) is not there


def test_another_made_it_anew_as_a_third_had() -> None:
    trace = Trace()
    trace.learn("g", again=False, position=0)
    trace.learn("m", again=True, position=0)
    assert trace.is_of_others()


def test_repeated_before_a_collective_or_counted_on_is_no_news() -> None:
    trace = Trace()
    trace.learn("m", again=True, position=0)
    trace.settle(1)
    assert not trace.explains("m")
    trace.learn("m", again=False, position=1)
    trace.count_on()
    assert not trace.explains("m")


def test_what_could_not_be_removed_is_no_news(
    tmp_path: Path, effects: SharedEffects, other: SharedEffects
) -> None:
    (tmp_path / "link").symlink_to("d")
    shutil.rmtree(tmp_path / "link", ignore_errors=True)
    assert not _knows(other, "g", tmp_path / "link")


def test_next_cell_knows_nothing_of_the_last(
    tmp_path: Path, effects: SharedEffects, other: SharedEffects
) -> None:
    (tmp_path / "d").mkdir()
    _has(other, "m", tmp_path / "d")
    effects.begin_cell(2)
    with pytest.raises(FileExistsError):
        (tmp_path / "d").mkdir()
    assert len(os.listdir(tmp_path / "private")) == 1


@pytest.mark.parametrize("end", ["end_cell", "uninstall"])
def test_plain_outside_of_cells(
    tmp_path: Path, effects: SharedEffects, other: SharedEffects, end: str
) -> None:
    (tmp_path / "d").mkdir()
    _has(other, "m", tmp_path / "d")
    getattr(effects, end)()
    with pytest.raises(FileExistsError):
        (tmp_path / "d").mkdir()


def test_plain_in_forked_processes(tmp_path: Path, other: SharedEffects) -> None:
    (tmp_path / "d").mkdir()
    _has(other, "m", tmp_path / "d")
    with multiprocessing.get_context("fork").Pool(1) as pool, pytest.raises(FileExistsError):
        pool.apply(os.mkdir, (tmp_path / "d",))


def test_plain_without_a_journal(tmp_path: Path) -> None:
    effects = SharedEffects(tmp_path / "not" / "there", 0, 2)
    effects.install()
    effects.begin_cell(1)
    (tmp_path / "d").mkdir()
    effects.uninstall()


def test_full_disk_fails_nothing(
    tmp_path: Path, effects: SharedEffects, other: SharedEffects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(file: int, data: bytes) -> None:
        plain(file, data[:5])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    plain = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", write)
        (tmp_path / "d").mkdir()
    _has(other, "m", tmp_path / "e")  # its line continues what was cut short
    _has(other, "m", tmp_path / "f")
    (tmp_path / "f").mkdir()
    with pytest.raises(FileExistsError):
        (tmp_path / "f").mkdir()


def test_download_that_outlives_its_cell(tmp_path: Path, effects: SharedEffects) -> None:
    (tmp_path / "source").write_text("abc")
    uri = (tmp_path / "source").as_uri()
    urllib.request.urlretrieve(uri, tmp_path / "a", lambda *_: effects.begin_cell(2))
    assert (tmp_path / "a").read_text() == "abc"


def test_unpacked_into_what_is_there(tmp_path: Path, effects: SharedEffects) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("new", "x")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "old").touch()
    shutil.unpack_archive(tmp_path / "all.zip", tmp_path / "d")
    assert sorted(os.listdir(tmp_path / "d")) == ["new", "old"]
    shutil.unpack_archive(tmp_path / "all.zip", tmp_path / "not" / "there")
    assert os.listdir(tmp_path / "not" / "there") == ["new"]


def test_rank_alone_keeps_no_journal(tmp_path: Path) -> None:
    effects = SharedEffects(tmp_path, 0, 1)
    effects.begin_cell(1)
    assert os.listdir(tmp_path) == []


def test_relative_to_open_directories(tmp_path: Path, other: SharedEffects) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        os.mkdir("d", dir_fd=folder)
        os.rename("d", "e", src_dir_fd=folder, dst_dir_fd=folder)
        os.rmdir("e", dir_fd=folder)
    finally:
        os.close(folder)


def test_errors_are_python_s_own(tmp_path: Path, effects: SharedEffects) -> None:
    with pytest.raises(TypeError):
        os.mkdir(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="null"):
        os.mkdir("a\0b")
    with pytest.raises(FileNotFoundError):
        shutil.rmtree(tmp_path / "d")
    with pytest.raises(URLError):
        urllib.request.urlretrieve("file:///not/there", tmp_path / "f")
    with pytest.raises(IsADirectoryError):
        urllib.request.urlretrieve("file:///etc/passwd", tmp_path)
    with pytest.raises(shutil.ReadError):
        shutil.unpack_archive(tmp_path, tmp_path / "d")
    assert os.listdir(tmp_path) == ["private"]


def test_headers_of_a_download(tmp_path: Path, effects: SharedEffects) -> None:
    (tmp_path / "source.txt").write_text("abc")
    uri = (tmp_path / "source.txt").as_uri()
    plain = urllib.request.urlretrieve.__wrapped__(uri, tmp_path / "a")  # type: ignore[attr-defined]
    name, headers = urllib.request.urlretrieve(uri, tmp_path / "b")
    assert Path(name) == tmp_path / "b"
    assert dict(headers) == dict(plain[1])
    assert (tmp_path / "b").read_text() == "abc"
    assert Path(urllib.request.urlretrieve(uri)[0]) == tmp_path / "source.txt"


def test_threads_of_one_rank_exclude_each_other(tmp_path: Path, effects: SharedEffects) -> None:
    failed = []

    def make() -> None:
        for k in range(100):
            try:
                (tmp_path / str(k)).mkdir()
            except FileExistsError:
                failed.append(k)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(failed) == sorted([*range(100)] * 3)


def test_functions_can_be_pickled(effects: SharedEffects) -> None:
    for function in (os.mkdir, os.remove, shutil.rmtree, urllib.request.urlretrieve):
        assert pickle.loads(pickle.dumps(function)) is function


def test_uninstall(effects: SharedEffects) -> None:
    names = [(os, "mkdir"), (shutil, "rmtree"), (torch.hub, "download_url_to_file")]
    before = [getattr(owner, name).__wrapped__ for owner, name in names]
    finders = len(sys.meta_path)
    effects.uninstall()
    assert [getattr(owner, name) for owner, name in names] == before
    assert len(sys.meta_path) == finders - 1


def test_cost(tmp_path: Path, effects: SharedEffects) -> None:
    names = iter(range(10_000))

    def make() -> None:
        os.mkdir(f"{tmp_path}/{next(names)}")

    shared_s = min(timeit.repeat(make, timer=time.process_time, number=100, repeat=30)) / 100
    effects.end_cell()
    plain_s = min(timeit.repeat(make, timer=time.process_time, number=100, repeat=30)) / 100
    assert shared_s - plain_s < 100e-6
