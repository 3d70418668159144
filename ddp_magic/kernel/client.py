"""An ipyparallel client that streams each request's messages to whoever sent it."""

from __future__ import annotations

import logging
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ipyparallel import Client
from ipyparallel.client.client import unpack_message
from ipyparallel.client.futures import MessageFuture
from IPython.core.getipython import get_ipython

from ddp_magic.core.invoke import Payload, invoke

_log = logging.getLogger(__name__)

Message = dict[str, Any]
Sink = Callable[[Message], None]

_LATE_REQUESTS = 1000  # how many requests are remembered for output that comes after their end


class StreamingClient(Client):
    """Hands the iopub messages of a request to its sink as they come, and keeps none of them.

    The stock client appends every text to one string per request, which is quadratic in a flood,
    and forgets a request when it ends, so that what a thread prints later is lost. It also sends
    on the bare socket of a stream that it reads: a reply that comes in at that moment is not
    noticed before the next one does. Here requests go through the stream.
    """

    def __init__(self, connection_info: str | dict[str, Any], **kwargs: Any) -> None:
        self._sinks: OrderedDict[str, Sink] = OrderedDict()
        self._changed = threading.Condition()
        self._registration_callbacks.append(self._note_change)
        super().__init__(connection_info, **kwargs)

    def send_cell(
        self, engine_id: int, code: str, metadata: dict[str, Any], sink: Sink
    ) -> MessageFuture:
        """Have one engine execute ``code``; ``sink`` gets its messages on the client's thread."""
        return self.send_execute_request(
            self._mux_stream,
            code,
            silent=False,
            metadata=metadata,
            ident=self._identity(engine_id),
            message_future_hook=partial(self._add_sink, sink),
        )

    def call(self, engine_id: int, target: str, payload: Payload) -> MessageFuture:
        """Call a function on one engine by name (see `core.invoke`)."""
        return self.send_apply_request(
            self._mux_stream, invoke, args=[target, payload], ident=self._identity(engine_id)
        )

    def ask_where(self, engine_id: int) -> MessageFuture:
        """Ask one engine where it is; it answers at once, whatever it does."""
        return self._ask(engine_id, "where_request")

    def ask(self, engine_id: int, target: str, payload: Payload) -> MessageFuture:
        """Call a function on one engine, on a thread of its own, also while a cell runs there.

        The reply's one buffer is pickled: ``(True, result)`` or ``(False, (name, text))``.
        """
        content = {"target": target}
        return self._ask(engine_id, "invoke_request", content, [pickle.dumps(payload)])

    def free(self, engine_id: int) -> MessageFuture:
        """Free one engine from a collective; all have to be."""
        return self._ask(engine_id, "free_request")

    def answer(self, engine_id: int, number: int, answer: str, text: str) -> MessageFuture:
        """Answer what one engine has asked (see `core.question`)."""
        content = {"number": number, "answer": answer, "text": text}
        return self._ask(engine_id, "answer_request", content)

    def on_engine_death(self, callback: Callable[[int], None]) -> None:
        """Call ``callback(engine_id)``, on the client's thread, when an engine has gone."""

        def notify(event: dict[str, Any]) -> None:
            if event["event"] == "unregister":
                callback(int(event["id"]))

        self._registration_callbacks.append(notify)

    def await_engines(self, engine_ids: Iterable[int], timeout_s: float) -> bool:
        """Wait until these engines can be reached; return whether they can."""
        wanted = set(engine_ids)
        with self._changed:
            return self._changed.wait_for(lambda: wanted <= set(self._engines), timeout_s)

    def controller_answers(self, timeout_s: float) -> bool:
        """Ask the controller for something, and return whether it answers in time."""
        content = {"targets": [], "verbose": False}
        reply = self._send(self._query_stream, "queue_request", content=content)
        reply.wait(timeout_s)
        return bool(reply.done())

    def report_death(self, engine_id: int) -> None:
        """Tell the hub, and so every client, that an engine has gone; may be called on any thread.

        It is what ipyparallel's nanny sends, where there is one.
        """
        send = partial(
            self.session.send,
            self._query_stream,
            "unregistration_request",
            content={"id": engine_id},
        )
        self._io_loop.add_callback(send)

    def _ask(
        self,
        engine_id: int,
        request: str,
        content: dict[str, Any] | None = None,
        buffers: list[bytes] | None = None,
    ) -> MessageFuture:
        return self._send(
            self._control_stream,
            request,
            content=content or {},
            buffers=buffers,
            ident=self._identity(engine_id),
        )

    def _note_change(self, _: dict[str, Any]) -> None:
        with self._changed:
            self._changed.notify_all()

    def _identity(self, engine_id: int) -> bytes:
        return self._build_targets([engine_id])[0][0]

    def _add_sink(self, sink: Sink, future: MessageFuture) -> None:
        self._sinks[future.msg_id] = sink
        while len(self._sinks) > _LATE_REQUESTS:
            self._sinks.popitem(last=False)

    def _handle_execute_reply(self, message: Message) -> None:
        """Show the sink a reply as well, for what its metadata say."""
        sink = self._sinks.get(message["parent_header"].get("msg_id"))
        if sink is not None:
            sink(message)
        super()._handle_execute_reply(message)

    @unpack_message
    def _dispatch_iopub(self, message: Message) -> None:
        sink = self._sinks.get(message["parent_header"].get("msg_id"))
        kind = message["header"]["msg_type"]
        # The stock client resolves requests by their status and relays widgets' comms.
        is_comm = kind.startswith("comm_")
        if (is_comm and relays_widgets()) or (not is_comm and (sink is None or kind == "status")):
            _take(partial(Client._dispatch_iopub.__wrapped__, self), message)
        if sink is not None:
            _take(sink, message)


def relays_widgets() -> bool:
    """Return whether this process is a kernel; elsewhere the stock client fails on a comm."""
    return getattr(get_ipython(), "kernel", None) is not None


def _take(sink: Sink, message: Message) -> None:
    """Hand on a message; whoever fails on it must not end the thread that every reply comes on."""
    try:
        sink(message)
    except Exception:
        _log.exception("a rank's message could not be taken")
