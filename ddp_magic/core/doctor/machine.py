"""The machine, or the container: network, memory, limits, folders."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_magic.core import needs
from ddp_magic.core.advice import advice_on
from ddp_magic.core.doctor.finding import Finding, degraded, ok, wrong

_LEAST_SHM_BYTES = 2**30  # a container has 64 MiB by default
_LEAST_FOLDER_BYTES = 2**24
_FEWER = "start fewer ranks with -n"


@dataclass(frozen=True)
class Network:
    """How ranks reach each other.

    Attributes
    ----------
    interface
        The loopback interface's name.
    is_there, is_up
        Whether it exists, and is up.
    error
        Why a connection over it failed; ``""`` if none did.
    """

    interface: str
    is_there: bool = True
    is_up: bool = True
    error: str = ""


@dataclass(frozen=True)
class HostName:
    """What the machine's own name is found to be.

    Attributes
    ----------
    address
        ``""`` if it is not found, or was not in time.
    error
        Why not; ``""`` if it took too long.
    """

    name: str
    address: str = ""
    error: str = ""


@dataclass(frozen=True)
class Room:
    """A folder and the space in it.

    Attributes
    ----------
    error
        Why nothing can be written there.
    """

    path: str
    total_bytes: int = 0
    free_bytes: int = 0
    error: str = ""


@dataclass(frozen=True)
class Capacity:
    """What is there for ranks. None: no limit.

    Attributes
    ----------
    ranks
        How many there are by default.
    cores
        That this process may keep busy.
    free_bytes
        Memory, of the machine or of its container.
    open_files
        In one process, as much as it may raise the limit to.
    tasks
        How many more processes and threads there may be.
    address_bytes, file_bytes
        The limits on one process's memory addresses, and on the size of a file.
    """

    ranks: int
    cores: int
    free_bytes: int
    open_files: int | None = None
    tasks: int | None = None
    address_bytes: int | None = None
    file_bytes: int | None = None


def check_network(facts: Network) -> Finding:
    """Judge the interface that gloo uses."""
    name = facts.interface
    up = f"`ip link set {name} up` (as root)"
    if not facts.is_there:
        return wrong("network", f"there is no loopback interface {name}: ranks cannot connect")
    if not facts.is_up:
        return wrong("network", f"{name} is down: ranks cannot connect to each other", up)
    if facts.error:
        text = f"no connection over {name}: {facts.error}"
        return wrong("network", text, advice_on(facts.error) or "does a firewall forbid it?")
    return ok("network", f"gloo connects ranks over {name}, which works")


def check_host_name(facts: HostName) -> Finding:
    """Judge whether the machine's name has an address; only scripts of the user's need that."""
    if facts.address:
        return ok("host name", f"{facts.name} is {facts.address}")
    found = f"no address is found for {facts.name}" + (f": {facts.error}" if facts.error else "")
    if not facts.error:
        found = f"it takes long to find an address for {facts.name}"
    return degraded(
        "host name",
        f"{found}; ranks do not need it, but scripts that connect by name may",
        f"echo '127.0.1.1 {facts.name}' >> /etc/hosts (as root)",
    )


def check_shm(facts: Room, gpu_count: int) -> Finding:
    """Judge /dev/shm, where workers of loaders put their batches, and NCCL what it sends."""
    users = "loaders with workers" + (" and NCCL" if gpu_count > 1 else "")
    larger = "a larger one: `mount -o remount,size=8G /dev/shm` (as root), in a container"
    fix = f"{larger} `docker run --shm-size=8g` or `--ipc=host`"
    if facts.error:
        return degraded("/dev/shm", f"{facts.error}; {users} need it", fix)
    told = f"{_size(facts.free_bytes)} of {_size(facts.total_bytes)} are free"
    if facts.total_bytes < _LEAST_SHM_BYTES:
        return degraded("/dev/shm", f"{told}, little for {users}", fix)
    if facts.free_bytes < _LEAST_SHM_BYTES // 4:
        return degraded("/dev/shm", f"{told}, little for {users}", "`ls -l /dev/shm` shows whose")
    return ok("/dev/shm", told)


def check_folder(facts: Room) -> Finding:
    """Judge the folder for temporary files, where a session has its own."""
    if facts.error:
        fix = advice_on(facts.error) or "set TMPDIR to a folder of yours with space"
        return wrong("temporary files", f"{facts.path}: {facts.error}", fix)
    told = f"{facts.path}, {_size(facts.free_bytes)} are free"
    if facts.free_bytes < _LEAST_FOLDER_BYTES:
        return wrong("temporary files", told, "free some, or set TMPDIR to a folder with space")
    return ok("temporary files", told)


def check_memory(facts: Capacity) -> Finding:
    """Judge whether ranks fit, before the user's own data."""
    needed = needs.memory_bytes(facts.ranks)
    told = f"{_size(facts.free_bytes)} are free"
    if needed > facts.free_bytes:
        text = f"{told}, and {_ranks(facts.ranks)} need {_size(needed)} before your own data"
        return wrong("memory", text, f"free some, or {_FEWER}")
    if facts.address_bytes is not None and facts.address_bytes < 2**36:
        text = f"{told}, but one process may address {_size(facts.address_bytes)}"
        return degraded("memory", text, "`ulimit -v unlimited` before the notebook is started")
    return ok("memory", f"{told}; {_ranks(facts.ranks)} need {_size(needed)} before your own data")


def check_cores(facts: Capacity) -> Finding:
    """Judge the cores, of which each rank has its share."""
    told = "1 core" if facts.cores == 1 else f"{facts.cores} cores"
    if facts.cores < facts.ranks:
        text = f"{told} for {_ranks(facts.ranks)}, which take turns"
        return degraded("cores", text, f"give the machine or container more, or {_FEWER}")
    return ok("cores", f"{told} for {_ranks(facts.ranks)}")


def check_limits(facts: Capacity) -> Finding:
    """Judge the limits on open files, on processes and on the size of a file."""
    files, tasks = needs.open_files(facts.ranks), needs.tasks(facts.ranks)
    ranks = _ranks(facts.ranks)
    if facts.open_files is not None and facts.open_files < files:
        text = f"a process may open {facts.open_files} files, and {ranks} need {files}"
        return wrong("limits", text, f"raise `ulimit -Hn`, or {_FEWER}")
    if facts.tasks is not None and facts.tasks < tasks:
        text = f"{facts.tasks} more processes and threads are allowed, and {ranks} need {tasks}"
        return wrong("limits", text, "raise `ulimit -u`, or a container's `--pids-limit`")
    if facts.file_bytes is not None and facts.file_bytes < 2**30:
        text = f"no file may be larger than {_size(facts.file_bytes)}"
        return degraded("limits", text, "`ulimit -f unlimited` before the notebook is started")
    more = "any number of" if facts.tasks is None else f"{facts.tasks:,} more"
    allowed = "any number of" if facts.open_files is None else f"{facts.open_files:,}"
    return ok("limits", f"{allowed} open files a process, {more} processes and threads")


def check_transfer(error: str) -> Finding:
    """Judge what ``%ddp pull`` and ``%ddp push`` use: memory without a name, and /proc.

    Parameters
    ----------
    error
        Why ranks could not open such memory of the notebook's; ``""`` if they can.
    """
    if error:
        text = f"{error}: pull and push go through sockets, several times slower"
        return degraded("transfer", text, "Linux with /proc mounted, and memfd_create allowed")
    return ok("transfer", "pull and push go through shared memory")


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _size(count_bytes: int) -> str:
    if count_bytes < 2**30:
        return f"{count_bytes / 2**20:,.0f} MiB"
    return f"{count_bytes / 2**30:,.1f} GiB"
