"""What to do about failures that the system reports in words of its own."""

from __future__ import annotations

_FEWER = "Start fewer ranks with -n, or free memory or processes (`ulimit -u`)."
_ADVICE = {
    "No space left on device": "Free some space there, or set TMPDIR to a folder with space.",
    "File too large": "Raise the limit on the size of files (`ulimit -f`).",
    "Disk quota exceeded": "Free some space there, or set TMPDIR to a folder with space.",
    "Read-only file system": "Set TMPDIR to a folder that can be written.",
    "Permission denied": "Set TMPDIR to a folder of yours.",
    "Address already in use": (
        "No port of the loopback interface is free: end what holds them, or widen"
        " net.ipv4.ip_local_port_range."
    ),
    "Cannot assign requested address": "Is the loopback interface up? (`ip link set lo up`)",
    "Unable to find address for": "Is the loopback interface up? (`ip link set lo up`)",
    "Cannot allocate memory": "Start fewer ranks with -n, or free memory.",
    "Resource temporarily unavailable": _FEWER,
    "can't start new thread": _FEWER,
    "Too many open files": "Start fewer ranks with -n, or raise the limit (`ulimit -n`).",
}


def advice_on(message: str) -> str:
    """Return what to do about a failure, or ``""`` if its message says nothing known."""
    return next((advice for words, advice in _ADVICE.items() if words in message), "")
