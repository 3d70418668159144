"""What the ranks on this host do to files in one cell, written where all of them see it.

Effects are matched in the order in which each rank has them, between collectives: what another rank
did before the last collective is no news to any.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

MADE, GONE = "m", "g"


class _Step(NamedTuple):
    kind: str
    position: int


class Trace:
    """What other ranks have done with one path, as far as it matters to this one."""

    __slots__ = ("_ahead", "_latest")

    def __init__(self) -> None:
        self._ahead: list[_Step] = []  # what this rank has not come to, oldest first
        self._latest: _Step | None = None  # unless this rank has done something since

    def learn(self, kind: str, again: bool, position: int) -> None:
        """Take in another rank's entry; one made ``again`` is no step of its own."""
        self._latest = _Step(kind, position)
        if not again:
            self._ahead.append(self._latest)

    def settle(self, position: int) -> None:
        """Drop what others did before a collective that this rank has issued: it is past that."""
        self._ahead = [step for step in self._ahead if step.position >= position]
        if self._latest and self._latest.position < position:
            self._latest = None

    def had(self, kind: str, fresh: bool) -> bool:
        """Note an effect that this rank has really had; tell whether another had it before.

        What is made ``fresh``, where nothing was, comes after all that others have made and
        removed, whether this rank knew of it or not.
        """
        self._latest = None
        if fresh:
            self._pass_last(GONE)
        again = self._come_to(kind)
        if not again:
            self._ahead.clear()
        return again

    def explains(self, kind: str) -> bool:
        """Tell whether another rank did for this one what it now finds done."""
        explained = self._come_to(kind) or self._latest_is(kind)
        if explained:
            self._latest = None
        return explained

    def is_of_others(self) -> bool:
        """Tell whether this rank, when it removes the path, would remove what others made since.

        From its point of view what others have made and it has not is not there, and what they
        have removed and made anew is removed.
        """
        if self._ahead and self._ahead[0].kind == MADE:
            return True
        if self._ahead and (self.has_ahead(MADE) or self._latest_is(MADE)):
            del self._ahead[0]
            return True
        return False

    def has_ahead(self, kind: str) -> bool:
        """Tell whether others have done what this rank has not come to."""
        return any(step.kind == kind for step in self._ahead)

    def count_on(self) -> None:
        """Note that this rank counts on the directory, and so has come to its making."""
        if self._pass_last(MADE):
            self._latest = None

    def _latest_is(self, kind: str) -> bool:
        return self._latest is not None and self._latest.kind == kind

    def _come_to(self, kind: str) -> bool:
        for place, step in enumerate(self._ahead):
            if step.kind == kind:
                del self._ahead[: place + 1]
                return True
        return False

    def _pass_last(self, kind: str) -> bool:
        found = False
        while self._come_to(kind):
            found = True
        return found


class Journal:
    """The effects that the ranks on this host have had in one cell, in a file that all append to.

    Only what really had an effect is written, by key: an absolute path, or what names a download.

    Parameters
    ----------
    folder
        Private folder of the session, the same for all ranks on this host. What earlier cells left
        there is removed.
    number
        The cell's.
    begun
        What `collectives` gave as the cell began.
    rank
        This rank.

    Attributes
    ----------
    results
        What another rank gave with its entry, by key: what a download returned, or whence a file
        was moved.
    """

    def __init__(self, folder: Path, number: int, begun: int, rank: int) -> None:
        for path in folder.glob("effects-*"):
            if path.name.split("-")[1] != str(number):
                path.unlink(missing_ok=True)
        self._path = folder / f"effects-{number}"
        self._rank = rank
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        weakref.finalize(self, os.close, self._file)  # a thread may use it after the cell
        self._taken_in = 0
        self._begun = begun
        self._position = 0
        self._traces: defaultdict[str, Trace] = defaultdict(Trace)
        self._mutex = threading.Lock()  # the file's lock is the process's, of all its threads
        self.results: dict[str, str | None] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude all ranks, for an effect and its entry to be one step."""
        with self._mutex:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX)
                self._position = collectives() - self._begun
                self._take_in()
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Exclude the other ranks from what may take long, and from nothing else."""
        digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:32]
        with open(f"{self._path}-{digest}", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def trace(self, key: str) -> Trace:
        """Return what others have done there since the last collective."""
        trace = self._traces[key]
        trace.settle(self._position)
        return trace

    def explains(self, key: str, kind: str) -> bool:
        """Tell whether another rank did for this one what it now finds done."""
        explained = self.trace(key).explains(kind)
        if explained and kind == MADE:
            self._count_on_parents(key)
        return explained

    def note(self, key: str, kind: str, *, fresh: bool = False, result: str | None = None) -> None:
        """Write what this rank has just done."""
        again = self.trace(key).had(kind, fresh)
        if kind == MADE:
            self._count_on_parents(key)
        line = json.dumps([self._rank, kind, again, self._position, key, result])
        with suppress(OSError):  # a full disk must not fail an effect that was had
            os.write(self._file, f"{line}\n".encode())

    def _count_on_parents(self, path: str) -> None:
        while (parent := os.path.dirname(path)) != path:
            path = parent
            if path in self._traces:
                self.trace(path).count_on()

    def _take_in(self) -> None:
        size = os.fstat(self._file).st_size
        lines = os.pread(self._file, size - self._taken_in, self._taken_in).splitlines()
        self._taken_in = size
        for line in lines:
            with suppress(ValueError):  # cut short by a full disk
                rank, kind, again, position, key, result = json.loads(line)
                if rank != self._rank:
                    self._traces[key].learn(kind, again, position)
                    self.results[key] = result


def absolute(path: Any, options: dict[str, Any] | None = None) -> str | None:
    """Return a path by which all ranks know it, or None for what is no path of its own."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    for name, value in (options or {}).items():
        if name.endswith("dir_fd") and value is not None:
            return None
    return os.path.abspath(os.fsdecode(path))


def collectives() -> int:
    """Return how many collectives this rank has issued: where it is in what all ranks run."""
    group = dist.group.WORLD
    if group is None:
        return 0
    backends = [group._get_backend(device) for device in group._device_types]
    return sum(backend._get_sequence_number_for_group() for backend in backends)  # type: ignore[attr-defined]
