"""Owns every process of a session, so that all of them end with the notebook, however it ends.

::

    notebook ── guardian ── fork server ─┬─ controller
                                         └─ ranks ── what the user's code starts

The guardian waits for the notebook's end of a pipe to close, or for the fork server to end. Then it
ends all that is below it, removes the session's folder, and ends itself. On Linux a process whose
parent has gone becomes a child of the fork server, or else of the guardian, so nothing gets away.
Should the guardian be killed, the fork server does its work.
"""

from __future__ import annotations

import os
import resource
import selectors
import shutil
import signal
import threading
from contextlib import suppress
from typing import Any

from ddp_magic.forkserver.system import (
    adopt_orphans,
    die_with_parent,
    end_descendants,
    set_name,
)


def main(config: dict[str, Any], life_fd: int) -> None:
    """Fork the server and guard it.

    Parameters
    ----------
    config
        ``notebook``: the notebook's process id; ``requests_fd``: the socket on which it talks to
        the server; ``folder``: the session's; ``preload``: what the server imports.
    life_fd
        A pipe that ends when the notebook does.
    """
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited otherwise
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    adopt_orphans()
    _raise_file_limit()
    parent = os.getpid()
    server = os.fork()
    if server == 0:
        die_with_parent(parent, signal.SIGTERM)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, life_fd)  # the guardian's alone
        os.close(null)
        from ddp_magic.forkserver.server import serve

        os._exit(serve(config))
    os.close(config["requests_fd"])
    set_name("ddp-guardian")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _kill(server))
    watch = threading.Thread(
        target=_kill_at_end_of, args=(life_fd, config["notebook"], server), daemon=True
    )
    watch.start()
    _, status = os.waitpid(server, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends already
    end_descendants()
    shutil.rmtree(config["folder"], ignore_errors=True)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def _kill_at_end_of(life_fd: int, notebook: int, server: int) -> None:
    """Kill the server when the notebook's end of the pipe has closed, or the notebook has gone.

    A process that the notebook has forked may hold the pipe open for longer than it lives.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(life_fd, selectors.EVENT_READ)
        if hasattr(os, "pidfd_open"):  # Linux
            with suppress(OSError):  # it has gone: so has its end of the pipe
                selector.register(os.pidfd_open(notebook), selectors.EVENT_READ)
        while os.getppid() == notebook and selector.select() and os.getppid() == notebook:
            if not os.read(life_fd, 4096):
                break
    _kill(server)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _raise_file_limit() -> None:
    """Allow as many open files as the system lets us: a rank costs the controller a dozen."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # macOS refuses "unlimited"
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
