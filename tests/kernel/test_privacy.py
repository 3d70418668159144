"""A local session can be reached by its own user alone, and by no other session."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from ddp_magic import Session
from ddp_magic.kernel.client import StreamingClient
from ddp_magic.testing import RecordingView

_LOOPBACK = ("127.0.0.1", "::1")


def processes_of(session: Session) -> list[psutil.Process]:
    """Return all that a session has started: its guardian and what is below."""
    guardian = psutil.Process(session._cluster._server._guardian.pid)  # type: ignore[attr-defined]
    return [guardian, *guardian.children(recursive=True)]


@pytest.fixture(scope="module")
def sessions() -> Iterator[tuple[Session, Session]]:
    """Two sessions of one user at the same time."""
    first, second = Session(nproc=2), Session(nproc=2)
    for session in (first, second):
        session.run(
            "import os, torch\nport = os.environ['MASTER_PORT']\nsum = torch.ones(1)\n"
            "torch.distributed.all_reduce(sum)",
            view=RecordingView(),
        )
    yield first, second
    first.stop()
    second.stop()


def test_every_socket_that_listens_is_on_loopback(sessions: tuple[Session, Session]) -> None:
    """All processes: guardian, fork server, controller with its schedulers, ranks, notebook."""
    checked = 0
    for process in (psutil.Process(), *processes_of(sessions[0])):
        for connection in process.net_connections("inet"):
            if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE):
                assert connection.laddr.ip in _LOOPBACK, (process, connection)
                checked += 1
    assert checked  # the process group's


def test_only_the_process_group_listens_on_tcp(sessions: tuple[Session, Session]) -> None:
    listening = {
        process.name()
        for process in processes_of(sessions[0])
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"ddp-rank-0", "ddp-rank-1"}


def test_unix_sockets_lie_in_a_folder_of_the_users_own(sessions: tuple[Session, Session]) -> None:
    for session in sessions:
        folder = Path(session.folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.stat().st_uid == os.getuid()
        paths = {
            connection.laddr
            for process in processes_of(session)
            for connection in process.net_connections("unix")
            if connection.laddr
        }
        assert paths
        assert all(Path(path).parent == folder for path in paths), paths


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_another_user_reaches_no_socket_of_a_session(sessions: tuple[Session, Session]) -> None:
    path = "/usr/bin:/bin:/usr/local/bin"  # where another user finds an interpreter too
    if (python := shutil.which("python3", path=path)) is None:
        pytest.skip(f"no python3 on {path}")
    address = sessions[0]._ranks().client._config["mux"].removeprefix("ipc://")
    attempt = (
        "import socket, sys\n"
        "try: socket.socket(socket.AF_UNIX).connect(sys.argv[1])\n"
        "except PermissionError: print('refused')"
    )
    for user, said in ((os.getuid(), ""), (65534, "refused\n")):
        tried = subprocess.run(
            [python, "-c", attempt, address],
            user=user,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            env={},
        )
        assert tried.stdout == said, tried.stderr


def test_no_key_is_written_to_a_file_or_shown_in_a_command(
    sessions: tuple[Session, Session],
) -> None:
    session = sessions[0]
    key = session._ranks().client.session.key
    assert len(key) >= 32
    for file in Path(session.folder).rglob("*"):
        if file.is_file():
            assert key not in file.read_bytes()
    for process in processes_of(session):
        assert key.decode() not in " ".join(process.cmdline())
        assert key.decode() not in str(process.environ())


def test_messages_must_be_signed(sessions: tuple[Session, Session]) -> None:
    """Whoever got to a socket without the key would still be heard by no rank."""
    session = sessions[0]
    client = session._ranks().client
    assert client.session.signature_scheme == "hmac-sha256"
    stranger = dict(client._config)
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.connect(stranger["mux"])
        engine = client._identity(session._ranks().engines[0])
        header = {"msg_id": "1", "msg_type": "execute_request", "session": "x", "username": "x"}
        content = {"code": "intruded = 1", "silent": False, "user_expressions": {}}
        frames = [json.dumps(part).encode() for part in (header, {}, {}, content)]
        dealer.send_multipart([engine, b"<IDS|MSG>", b"", *frames])
    finally:
        dealer.close(linger=1000)
        context.term()
    view = RecordingView()
    session.run("print('intruded' in globals())", view=view, output="rank0")
    assert view.stdout == "False\n"


def test_two_sessions_do_not_meet(sessions: tuple[Session, Session]) -> None:
    first, second = sessions
    assert first._cluster.folder() != second._cluster.folder()
    assert set(first.pull("port")).isdisjoint(second.pull("port"))
    for session in sessions:
        assert [value.tolist() for value in session.pull("sum")] == [[2.0], [2.0]]
    assert {p.pid for p in processes_of(first)}.isdisjoint(p.pid for p in processes_of(second))


def test_a_script_can_make_a_group_of_its_own_on_the_port(
    sessions: tuple[Session, Session],
) -> None:
    """MASTER_ADDR and MASTER_PORT name a port that stays free for it."""
    view = RecordingView()
    sessions[0].run(
        "from torch.distributed import TCPStore\n"
        "store = TCPStore(os.environ['MASTER_ADDR'], int(port), world_size, rank == 0)\n"
        "store.set(f'{rank}', 'here')\nstore.wait(['0', '1'])\n"
        "print(store.get('1').decode())\n"
        "torch.distributed.barrier()\ndel store",
        view=view,
        output="rank0",
    )
    assert view.stdout == "here\n"


def test_a_taken_port_is_no_hindrance(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        monkeypatch.setenv("MASTER_ADDR", "nowhere.invalid")
        with Session(nproc=2) as session:
            session.run("import os\nseen = os.environ['MASTER_PORT']", view=RecordingView())
            assert str(taken.getsockname()[1]) not in session.pull("seen")


def test_a_client_without_the_key_is_not_answered(sessions: tuple[Session, Session]) -> None:
    config: dict[str, Any] = sessions[0]._ranks().client._config
    info = {
        name: value.rpartition(":")[2] if isinstance(value, str) and ":" in value else value
        for name, value in config.items()
    }
    info |= {"interface": config["interface"], "key": "not the key"}
    with pytest.raises(TimeoutError):
        StreamingClient(info, timeout=0.5)
