"""What processes do that the tests have forked."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

Config = dict[str, Any]
Ready = Callable[[dict[str, Any]], None]


def tell(config: Config, ready: Ready) -> None:
    import torch

    ready(
        {
            "config": config,
            "added": os.environ["ADDED"],
            "folder": os.getcwd(),
            "torch": "torch" in sys.modules,
            "cuda": torch.cuda.is_initialized(),
            "threads": threading.active_count(),
        }
    )


def leave(config: Config, ready: Ready) -> None:
    print("last words of leave")
    sys.exit(3)


def fail(config: Config, ready: Ready) -> None:
    raise RuntimeError("last words of fail")


def crash(config: Config, ready: Ready) -> None:
    print("last words of crash", file=sys.stderr)
    ctypes.string_at(0)


def print_both(config: Config, ready: Ready) -> None:
    for byte in "schön\n".encode():  # no character may be cut in two
        os.write(1, bytes([byte]))
    os.write(2, b"err\n")


def flood(config: Config, ready: Ready) -> None:
    for _ in range(1000):
        os.write(1, b"x" * 65535 + b"\n")
    os.write(1, b"the end\n")


def wait(config: Config, ready: Ready) -> None:
    ready({})
    signal.pause()


def start_daemon(config: Config, ready: Ready) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    ready({"daemon": subprocess.Popen(command, start_new_session=True).pid})
    signal.pause()
