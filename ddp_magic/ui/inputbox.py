"""The input box of the cell that runs, while the cell's thread does other things."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from typing import Any

_POLL_MS = 20
_EOF = "\x04"


def no_input(shell: Any) -> str:
    """Return why nobody can be asked; ``""`` if somebody can."""
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        return "" if kernel._allow_stdin else "this front end takes no input"
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    return "" if at_terminal else "there is no terminal to answer at"


def ask(shell: Any, prompt: str, goes_on: Callable[[], bool], is_password: bool) -> str | None:
    """Return a line that is typed, None if it is not wanted any more (see `core.view.View.ask`).

    The kernel's own `input` does nothing else meanwhile; in a terminal this does not, either.
    """
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        line = getpass.getpass(prompt) if is_password else input(prompt)
        return line if goes_on() else None
    sys.stdout.flush()
    sys.stderr.flush()
    session, socket = kernel.session, kernel.stdin_socket
    while socket.poll(0):  # what was typed too late for another question
        session.recv(socket)
    # There is no public way to learn to whom the cell's frontend is connected.
    frontend = kernel._get_shell_context_var(kernel._shell_parent_ident)
    content = {"prompt": prompt, "password": is_password}
    session.send(socket, "input_request", content, kernel.get_parent("shell"), ident=frontend)
    while goes_on():
        if socket.poll(_POLL_MS):
            _, reply = session.recv(socket)
            if reply is not None:
                return _typed(reply)
    return None


def _typed(reply: dict[str, Any]) -> str:
    value: str = reply["content"]["value"]
    if value == _EOF:
        raise EOFError
    return value
