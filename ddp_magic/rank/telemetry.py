"""From a rank to the notebook: losses, notices and how the cell ended, in numbered messages."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import Any

Drain = Callable[[], dict[str, list[tuple[int, float]]]]
Send = Callable[[dict[str, Any]], None]

_INTERVAL_S = 0.1
_LONGEST_INTERVAL_S = 0.5
_INTERVAL_SHARE = 0.1  # of the time that a cell has run: a long curve changes slowly
_FACTS_HOLD_S = 0.3  # facts of one loop (its model, its loader) come within this and share a line
_FACT_ORDER = ("model", "loader")


class Channel:
    """Numbers a cell's messages and sends them with the kernel's own iopub stream."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._parent: dict[str, Any] = {}
        self._numbers = itertools.count()
        self._topic = kernel._topic("ddp_magic")

    def begin_cell(self) -> None:
        """Address what follows to the cell that the kernel is now running."""
        self._parent = self._kernel.get_parent("shell")
        self._numbers = itertools.count()

    def open_for_thread(self) -> None:
        """Make, once, what sending takes on the thread that calls this: a pipe of its own."""
        if (thread := getattr(self._kernel.iopub_socket, "io_thread", None)) is not None:
            thread.schedule(lambda: None)

    def send(self, content: dict[str, Any]) -> None:
        """Send one message about the current cell; may be called on any thread."""
        self._kernel.session.send(
            self._kernel.iopub_socket,
            "ddp_magic",
            {"number": next(self._numbers), **content},
            parent=self._parent,
            ident=self._topic,
        )


class RankReport:
    """What the parts of the rank tell the user: facts joined into one line, notices said once."""

    def __init__(self, send: Send, heading: str) -> None:
        self._send = send
        self._heading = heading
        self._facts: dict[str, list[str]] = {}
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def did(self, kind: str, text: str) -> None:
        """Hold a fact until `flush`; one that was told before is not told again."""
        with self._lock:
            if (key := f"did {kind} {text}") not in self._seen:
                self._seen.add(key)
                self._facts.setdefault(kind, []).append(text)

    def notice(self, key: str, text: str) -> None:
        """Send one line, once per ``key``."""
        with self._lock:
            if key in self._seen:
                return
            self._seen.add(key)
        self._send({"kind": "notice", "key": key, "text": text})

    @property
    def told(self) -> set[str]:
        """What is not told again."""
        with self._lock:
            return set(self._seen)

    def note_told(self, keys: set[str]) -> None:
        """Tell none of these any more."""
        with self._lock:
            self._seen |= keys

    @property
    def has_facts(self) -> bool:
        """Whether facts are waiting to be told."""
        return bool(self._facts)

    def flush(self) -> None:
        """Send the facts that have come in as one line."""
        with self._lock:
            facts, self._facts = self._facts, {}
        if facts:
            told = [text for kind in sorted(facts, key=_fact_order) for text in facts[kind]]
            line = " · ".join([self._heading, *told])
            self._send({"kind": "notice", "key": "did", "text": line})


def _fact_order(kind: str) -> int:
    return _FACT_ORDER.index(kind) if kind in _FACT_ORDER else len(_FACT_ORDER)


class Sampler:
    """The thread that sends losses and facts while a cell runs.

    Ten times a second at first, then less often: on a busy machine whoever draws takes its time
    from the ranks.
    """

    def __init__(self, drain: Drain, report: RankReport, send: Send) -> None:
        self._drain = drain
        self._report = report
        self._send = send
        self._running = threading.Event()
        self._lock = threading.Lock()
        self._facts_for_s = 0.0
        self._began_s = 0.0
        self._thread = threading.Thread(target=self._main, name="ddp-telemetry", daemon=True)
        self._thread.start()

    def begin_cell(self) -> None:
        """Begin to send."""
        self._began_s = time.monotonic()
        self._running.set()

    def end_cell(self) -> None:
        """Send what is left; nothing follows it."""
        leads = self._running.is_set()
        self._running.clear()
        with self._lock:
            if leads:
                self._send_points()
            self._report.flush()

    def _main(self) -> None:
        while True:
            self._running.wait()
            ran_s = time.monotonic() - self._began_s
            interval_s = min(max(_INTERVAL_S, _INTERVAL_SHARE * ran_s), _LONGEST_INTERVAL_S)
            time.sleep(interval_s)
            with self._lock:
                if self._running.is_set():
                    self._sample(interval_s)

    def _sample(self, interval_s: float) -> None:
        self._send_points()
        self._facts_for_s = self._facts_for_s + interval_s if self._report.has_facts else 0.0
        if self._facts_for_s >= _FACTS_HOLD_S:
            self._report.flush()

    def _send_points(self) -> None:
        if drained := self._drain():
            self._report.flush()  # what was done to the cell stands above its curve
            points = {name: [_jsonable(point) for point in some] for name, some in drained.items()}
            self._send({"kind": "points", "points": points})


def _jsonable(point: tuple[int, float]) -> tuple[int, float | str]:
    """Write NaN and the infinities, which JSON lacks, as their names."""
    step, value = point
    return step, value if math.isfinite(value) else str(value)
