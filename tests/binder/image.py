"""What Binder would make of `binder/`, and a machine as small as one of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import TracebackType

import psutil
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "binder"
MEMORY_BYTES = 2 * 2**30  # what mybinder.org gives at most
_NOBODY = 65534
_SAMPLE_S = 0.2
_READ_ALL = "+dac_read_search"  # the interpreter may be where only root may look


def lines(path: Path) -> list[str]:
    """Return what a requirements file says, without comments."""
    stripped = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in stripped if line]


def unmet(extra: str, constraints: Sequence[str]) -> list[str]:
    """Return what an installation of this package into this environment would change.

    Parameters
    ----------
    extra
        The optional dependencies that are installed as well.
    constraints
        Requirements that hold for whatever is installed.
    """
    bounds = {_key(one.name): one for one in map(Requirement, constraints)}
    todo, seen, found = [Requirement(f"ddp-magic[{extra}]")], set(), []
    while todo:
        wanted = todo.pop()
        asked = (_key(wanted.name), frozenset(wanted.extras))
        version = _version(wanted.name)
        bound = bounds.get(asked[0], wanted)
        if version is None or not all(
            one.specifier.contains(version, prereleases=True) for one in (wanted, bound)
        ):
            found.append(f"{wanted} {bound.specifier}: {version or 'nothing'} is installed")
        elif asked not in seen:
            seen.add(asked)
            todo += _requirements(wanted)
    return found


def _requirements(wanted: Requirement) -> Iterator[Requirement]:
    for text in metadata.requires(wanted.name) or ():
        one = Requirement(text)
        extras = ("", *wanted.extras)
        if one.marker is None or any(one.marker.evaluate({"extra": name}) for name in extras):
            yield one


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass
class Machine:
    """One core, two gigabytes, a user who is not root and may write nowhere but where told.

    Parameters
    ----------
    folder
        An empty one. ``home`` in it cannot be written to, but for ``home/notebooks``.

    Attributes
    ----------
    limited_by
        What bounds the memory.
    peak_bytes
        The most memory that all its processes had together, as the system shares it out (PSS).
    """

    folder: Path
    peak_bytes: int = 0
    limited_by: str = "RLIMIT_DATA of each process"
    _started: list[psutil.Process] = field(default_factory=list)
    _group: Path | None = None

    def __post_init__(self) -> None:
        self.home = self.folder / "home"
        self.notebooks = self.home / "notebooks"
        self._own = [self.notebooks, self.folder / "tmp", self.folder / "jupyter"]
        for path in self._own:
            path.mkdir(parents=True)
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="memory sampler")

    def __enter__(self) -> Machine:
        self._group = _memory_group(f"ddp_magic_{os.getpid()}")
        if self._group is not None:
            self.limited_by = "a cgroup of all processes"
        for path in self._own:
            self._give(path)
        self.home.chmod(0o555)
        self._sampler.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._sampler.join()
        self.home.chmod(0o755)
        _, alive = psutil.wait_procs(self._all(), timeout=10)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=10)
        if self._group is not None:
            self._group.rmdir()

    def copy(self, path: Path) -> Path:
        """Copy a file to where the notebooks are."""
        copied = Path(shutil.copy(path, self.notebooks))
        self._give(copied)
        return copied

    @contextmanager
    def run(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command in the folder of the notebooks; it is ended."""
        process = subprocess.Popen(
            [*self._confined(), *command],
            cwd=self.notebooks,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(psutil.Process(process.pid))
        with process:
            try:
                yield process
            finally:
                process.terminate()

    def _confined(self) -> list[str]:
        core = str(min(os.sched_getaffinity(0)))
        command = ["taskset", "--cpu-list", core]
        if self._group is not None:
            entered = f'echo $$ > "{self._group}/cgroup.procs"; exec "$@"'
            command = ["sh", "-c", entered, "sh", *command]
        else:
            command = ["prlimit", f"--data={MEMORY_BYTES}", *command]
        if os.getuid() == 0:
            command += ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
            command += [f"--inh-caps={_READ_ALL}", f"--ambient-caps={_READ_ALL}"]
        return command

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "IPYTHON"))}
        jupyter, path = self.folder / "jupyter", Path(sys.executable).parent
        return kept | {
            "HOME": str(self.home),
            "USER": "jovyan",
            "PATH": f"{path}{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(self.folder / "tmp"),
            # Of the server's own; ours are where the user has his notebooks, or in TMPDIR.
            "JUPYTER_CONFIG_DIR": str(jupyter / "config"),
            "JUPYTER_DATA_DIR": str(jupyter / "data"),
            "JUPYTER_RUNTIME_DIR": str(jupyter / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(jupyter / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(jupyter / "workspaces"),
        }

    def _give(self, path: Path) -> None:
        if os.getuid() == 0:
            os.chown(path, _NOBODY, _NOBODY)

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, sum(map(_pss_bytes, self._all())))

    def _all(self) -> list[psutil.Process]:
        found = {}
        for started in tuple(self._started):
            with suppress(psutil.NoSuchProcess):
                for process in (started, *started.children(recursive=True)):
                    found[process.pid] = process
        return list(found.values())


def _pss_bytes(process: psutil.Process) -> int:
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended
        return 0
    match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return 1024 * int(match[1]) if match else 0


def _memory_group(name: str) -> Path | None:
    """Make a cgroup with so much memory, of either version; None where that is not allowed."""
    for parent, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = Path(parent, name)
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(MEMORY_BYTES))
            return group
        except OSError:
            group.rmdir()
    return None
