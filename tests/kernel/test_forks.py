"""The fork server by itself: what it tells of the processes that it forks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import psutil
import pytest

from ddp_magic.errors import StartError
from ddp_magic.kernel.forks import ForkedProcess, ForkServer

_DEADLINE_S = 60.0


class Output:
    """What a process printed."""

    def __init__(self) -> None:
        self.text: dict[str, str] = {"stdout": "", "stderr": ""}
        self._changed = threading.Condition()

    def __call__(self, stream: str, text: str) -> None:
        with self._changed:
            self.text[stream] += text
            self._changed.notify_all()

    def wait_for(self, stream: str, text: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: text in self.text[stream], _DEADLINE_S)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    server.loaded.result(_DEADLINE_S)
    yield server
    server.close()


def fork(server: ForkServer, action: str, output: Output | None = None) -> ForkedProcess:
    """Fork a process that does one of the things in `tests.kernel.forked`."""
    return server.fork(
        f"tests.kernel.forked:{action}",
        {"given": 1},
        name=action,
        environment={**os.environ, "ADDED": "yes"},
        is_rank=True,
        on_output=output or Output(),
    )


def process_of(server: ForkServer) -> psutil.Process:
    """Return the fork server itself, the guardian's one child."""
    (process,) = psutil.Process(server._guardian.pid).children()
    return process


def test_a_process_has_torch_and_the_place_it_was_given(server: ForkServer) -> None:
    info = fork(server, "tell").ready.result(_DEADLINE_S)
    assert info == {
        "config": {"given": 1},
        "added": "yes",
        "folder": os.getcwd(),
        "torch": True,
        "cuda": False,
        "threads": 1,
    }


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        ("leave", "exited with code 3"),
        ("crash", "died of SIGSEGV (compiled code crashed)"),
        ("fail", "exited with code 1"),
    ],
)
def test_how_a_process_ended_is_known(server: ForkServer, action: str, sentence: str) -> None:
    process = fork(server, action)
    end = process.ended.result(_DEADLINE_S)
    assert end.sentence.replace(", core dumped", "") == sentence
    assert f"last words of {action}" in end.tail
    with pytest.raises(StartError, match=f"{action} .* while it started"):
        process.ready.result(_DEADLINE_S)


def test_output_is_passed_on_by_stream_and_bounded(server: ForkServer) -> None:
    output = Output()
    process = fork(server, "print_both", output)
    assert process.ended.result(_DEADLINE_S).exit_code == 0
    server.flush()
    assert output.text == {"stdout": "schön\n", "stderr": "err\n"}
    output = Output()
    process = fork(server, "flood", output)
    process.ended.result(_DEADLINE_S)
    server.flush()
    assert len(output.text["stdout"]) < 60_000_000
    assert output.wait_for("stdout", "the end\n")


def test_signals_reach_the_process_that_is_meant(server: ForkServer) -> None:
    first, second = fork(server, "wait"), fork(server, "wait")
    for process in (first, second):
        process.ready.result(_DEADLINE_S)
    server.signal(first, signal.SIGUSR1)
    assert first.ended.result(_DEADLINE_S).signal_name == "SIGUSR1"
    assert not second.ended.done()
    server.signal(first, signal.SIGUSR1)  # has gone: nothing happens
    with pytest.raises(ValueError, match="999 is no signal"):
        server.signal(second, 999)
    server.end([second], grace_s=0)
    assert second.ended.result(_DEADLINE_S).signal_name in ("SIGTERM", "SIGKILL")


def test_ending_a_process_ends_what_it_started(server: ForkServer) -> None:
    process = fork(server, "start_daemon")
    daemon = psutil.Process(process.ready.result(_DEADLINE_S)["daemon"])
    server.end([process], grace_s=0.5)
    assert not daemon.is_running()


def test_what_cannot_be_forked_is_refused(server: ForkServer) -> None:
    target = process_of(server)
    limits = target.rlimit(psutil.RLIMIT_NOFILE)
    target.rlimit(psutil.RLIMIT_NOFILE, (target.num_fds(), limits[1]))
    try:
        process = fork(server, "tell")
        with pytest.raises(StartError, match=r"could not be started: .*Too many open files"):
            process.ready.result(_DEADLINE_S)
    finally:
        target.rlimit(psutil.RLIMIT_NOFILE, limits)
    fork(server, "tell").ready.result(_DEADLINE_S)


def test_nothing_is_forked_with_threads_or_a_gpu(server: ForkServer) -> None:
    """A fork copies one thread; locks that others held stay locked, and CUDA does not survive."""
    target = process_of(server)
    assert target.num_threads() == 1
    assert not any("nvidia" in file.path for file in target.open_files())


def test_the_servers_end_is_told() -> None:
    server = ForkServer()
    process = fork(server, "wait")
    process.ready.result(_DEADLINE_S)
    process_of(server).kill()
    assert server.lost.result(_DEADLINE_S).startswith("the fork server was killed by SIGKILL")
    assert process.ended.result(_DEADLINE_S).sentence == "has gone"
    assert not server.alive
    assert not server.folder.exists()
    server.close()


def test_an_unimportable_module_is_named() -> None:
    server = ForkServer(preload=["nosuchmodule"])
    with pytest.raises(StartError, match=r"nosuchmodule .* No module named 'nosuchmodule'"):
        server.loaded.result(_DEADLINE_S)
    server.close()
