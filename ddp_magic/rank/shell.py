"""IPython's own kernel and shell, adapted to run a notebook's cells on a rank."""

from __future__ import annotations

import ast
import asyncio
import logging
import os
import signal
import sys
import tempfile
import threading
import traceback
import types
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ipykernel.compiler import XCachingCompiler
from ipykernel.zmqshell import ZMQInteractiveShell
from ipyparallel.engine.kernel import IPythonParallelKernel
from IPython.core import page
from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell

from ddp_magic.core.cell import CELL_FOLDER
from ddp_magic.errors import DdpMagicError, StateError
from ddp_magic.rank.asked import Asked
from ddp_magic.rank.frames import is_library
from ddp_magic.rank.script import run_program
from ddp_magic.rank.where import is_users, main_place

METADATA_KEY = "ddp_magic"
_IMPORTS = "<frozen importlib"
_AGAIN_S = 0.05  # after which an interrupt is pressed anew that came amid an import
_KEPT_ENTRIES = 20  # at either end of a long traceback
_PACKAGE = str(Path(__file__).parents[1])


class CellLife(Protocol):
    """What surrounds a cell on a rank."""

    def cell(self, wire: dict[str, Any]) -> AbstractContextManager[None]:
        """Surround the running of a cell, given its plan."""

    def run_program(
        self, name: str, args: list[str], namespace: dict[str, Any], **how: Any
    ) -> None:
        """Run a script or module (see `ddp_magic.rank.script.run_program`)."""

    def look(self) -> dict[str, Any]:
        """Return what shows whether this rank waits; called while a cell runs, on any thread."""

    def free(self) -> None:
        """End what this rank waits for in a collective; called on any thread."""

    def ask(self, prompt: str, *, is_password: bool) -> str:
        """Return what is typed in the notebook."""

    def take_answer(self, wire: dict[str, Any]) -> None:
        """Take what was typed; called on the control thread."""

    def look_into(self, failure: BaseException) -> None:
        """Have it looked into, with pdb."""

    def note_end(self, *, failed: bool) -> None:
        """Be told, still within the cell, how it ended."""

    def close_cell(self, *, failed: bool) -> dict[str, Any]:
        """Act when the cell has run and its output has been flushed; return what goes along."""


class RankCompiler(XCachingCompiler):
    """Compiles a cell's body with the line numbers of the whole cell, magic line included."""

    header = ""  # the lines that stand above the body in the notebook's cell

    def get_code_name(self, raw_code: str, code: str, number: int) -> str:
        """Return a file name that is the same on all ranks; ipykernel's tells the process."""
        name = os.path.basename(super().get_code_name(raw_code, code, number))
        return os.path.join(cell_folder(), name)

    def ast_parse(self, source: str, filename: str = "<unknown>", symbol: str = "exec") -> ast.AST:
        """Parse ``source`` as if it stood below the header."""
        above = "\n" * self.header.count("\n")
        return super().ast_parse(above + source, filename, symbol)

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        """Keep the source with its header, so that tracebacks quote the right lines.

        As a comment: whoever looks at the source (`inspect`, `executing`) has to parse it.
        """
        raw_code = transformed_code if raw_code is None else raw_code
        header = self.header.replace("%%ddp", "# %%ddp", 1)
        return super().cache(header + transformed_code, number, raw_code)


class _NothingKept(dict[int, list[Any]]):
    """Takes the outputs of each cell, and forgets them."""

    def __missing__(self, _: int) -> list[Any]:
        return []


class RankShell(ZMQInteractiveShell):
    """The shell of a rank."""

    async def run_code(self, *args: Any, **kwargs: Any) -> Any:
        """Run compiled code of the user's, the one place where an interrupt may be raised."""
        with self.kernel.interruptible():
            return await super().run_code(*args, **kwargs)

    def _get_exc_info(self, exc_tuple: Any = None) -> Any:
        """Leave this package's own frames out of tracebacks: they are not the user's."""
        kind, error, traceback = super()._get_exc_info(exc_tuple)
        traceback = _from_program(traceback)
        if self.kernel.stopped and kind in (KeyboardInterrupt, asyncio.CancelledError):
            _end_in_users_code(traceback)
            error.__cause__ = error.__context__ = None
            kind = KeyboardInterrupt
        elif isinstance(error, DdpMagicError):
            _end_in_users_code(traceback)  # what it says is of that line, not of torch's
        _hide_own_frames(traceback)
        _cut_middle(traceback)
        return kind, error, traceback

    def showtraceback(
        self,
        exc_tuple: Any = None,
        filename: Any = None,
        tb_offset: Any = None,
        exception_only: bool = False,
        running_compiled_code: bool = False,
    ) -> None:
        """Show an error; of ``sys.exit()`` what it was given, and no more."""
        kind, error, traceback = self._get_exc_info(exc_tuple)
        if running_compiled_code or exception_only:
            self.kernel.keep_failure(error, traceback)
        with self.kernel.uninterruptible(for_good=running_compiled_code or exception_only):
            if exception_only and issubclass(kind, SystemExit):
                said = "" if error.code is None else f": {error.code}"
                self._showtraceback(kind, error, [f"SystemExit{said}"])
            else:
                super().showtraceback(
                    exc_tuple, filename, tb_offset, exception_only, running_compiled_code
                )

    def run_program(self, name: str, args: list[str], path: str, is_module: bool) -> None:
        """Run a script or module as ``__main__`` (see `ddp_magic.rank.script`)."""
        self.kernel.life.run_program(
            name, args, self.user_ns, path=path, is_module=is_module, transform=self.transform_ast
        )

    def post_mortem(self, number: int) -> None:
        """Look into what the cell of that number failed with, for ``%ddp debug``."""
        failed, error = self.kernel.failure or (None, None)
        if failed != number:
            raise StateError("The frames in which that cell failed are not there any more.")
        with suppress(KeyboardInterrupt):  # nothing else is lost by it
            self.kernel.life.look_into(error)

    def ask_exit(self) -> None:
        """Take ``exit()`` for the end of nothing: it would end this rank, and not the others."""
        print("exit() does not end the ranks: `%ddp stop` does", file=sys.stderr)

    def run_cell(self, *args: Any, **kwargs: Any) -> Any:
        """Run a cell without ``await`` as if no event loop ran, so that it may start its own."""
        with _no_running_loop():
            return super().run_cell(*args, **kwargs)


class RankKernel(IPythonParallelKernel):
    """The kernel of a rank: `adopt` turns a running engine's kernel into one.

    Attributes
    ----------
    in_user_code
        Whether an interrupt may be raised now.
    interrupt_waits
        Whether one came before the user's code.
    stopped
        Whether one has come to the user's code that was run last.
    failure
        What the user's code has last failed with, and the number of the cell.
    awaited
        The task of a cell with ``await``, while that runs.
    asked
        Answers the notebook's questions while a cell runs.
    """

    life: CellLife
    in_user_code: bool
    interrupt_waits: bool
    stopped: bool
    failure: tuple[int, BaseException] | None
    awaited: asyncio.Future[Any] | None
    asked: Asked

    @classmethod
    def adopt(cls, kernel: IPythonParallelKernel, life: CellLife) -> RankKernel:
        """Turn ``kernel`` and its shell into a rank's, in place.

        Engines are started by ipyparallel's launchers, on any cluster, so a rank cannot choose
        the class of its kernel; both classes add behaviour alone, no state of their own layout.
        """
        kernel.__class__ = cls
        kernel.shell.__class__ = RankShell
        kernel.shell.compile = RankCompiler()
        # ipykernel 7 compares the current thread with that of its shell channel when it runs a
        # cell with a top-level await; an engine has none, and the request was never answered.
        kernel.shell_channel_thread = types.SimpleNamespace(parent_thread=threading.main_thread())
        kernel.life = life
        # IPython 9 keeps all that cells print, for `%notebook`, which is of no use on a rank.
        kernel.shell.history_manager.outputs = _NothingKept()
        kernel.log.setLevel(logging.WARNING)  # it makes several records of each request
        # The pager of a notebook is fed by the reply; of a rank's, the output is what is shown.
        kernel.shell.set_hook("show_in_pager", page.as_hook(page.display_page), 0)
        # In the notebook this package's errors are shown without frames, which are the magic's;
        # here a line of the user's raises them.
        if "_render_traceback_" in vars(DdpMagicError):
            delattr(DdpMagicError, "_render_traceback_")
        warnings.filterwarnings("ignore", "To exit: use", module="IPython")  # after sys.exit()
        kernel.in_user_code = kernel.interrupt_waits = kernel.stopped = False
        kernel.awaited = kernel.failure = None
        kernel.control_handlers["where_request"] = kernel.where_request
        kernel.control_handlers["free_request"] = kernel.free_request
        kernel.control_handlers["invoke_request"] = kernel.invoke_request
        kernel.control_handlers["answer_request"] = kernel.answer_request
        kernel.asked = Asked()
        return kernel

    def where_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Say, on the control thread, where the main thread is."""
        look, place = self.life.look(), main_place(cell_folder())
        if call := look.pop("call"):
            place = replace(place, collective=call)
        content = {"place": vars(place), **look}
        self.session.send(stream, "where_reply", content, parent=parent, ident=ident)

    def free_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """End, on the control thread, what the main thread waits for."""
        self.life.free()
        self.session.send(stream, "free_reply", {}, parent=parent, ident=ident)

    def answer_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Take, on the control thread, an answer to what this rank has asked."""
        self.life.take_answer(parent["content"])
        self.session.send(stream, "answer_reply", {}, parent=parent, ident=ident)

    def raw_input(self, prompt: Any = "") -> str:
        """Ask in the notebook, for ``input()``."""
        return self.life.ask(str(prompt), is_password=False)

    def getpass(self, prompt: Any = "", stream: Any = None, *, echo_char: Any = None) -> str:
        """Ask in the notebook, for ``getpass.getpass()``."""
        return self.life.ask(str(prompt), is_password=True)

    def invoke_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Call a function on another thread: it may take its time, this one must not."""
        loop = self.control_thread.io_loop
        target, payload = parent["content"]["target"], bytes(parent["buffers"][0])

        def reply(answer: bytes) -> None:
            send = partial(self.session.send, stream, "invoke_reply", {}, parent=parent)
            loop.add_callback(send, ident=ident, buffers=[answer])

        self.asked.put(target, payload, reply)

    def keep_failure(self, error: BaseException, traceback: types.TracebackType | None) -> None:
        """Keep, for a debugger, what a cell of a session's has failed with."""
        wire = _plan_of(self.get_parent("shell"))
        entry = traceback
        while entry is not None and entry.tb_frame.f_code is not InteractiveShell.run_code.__code__:
            entry = entry.tb_next
        begin = traceback if entry is None else entry.tb_next
        if wire is not None and begin is not None:
            self.failure = wire["number"], error.with_traceback(begin)

    @property
    def _supports_kernel_subshells(self) -> bool:
        return False

    async def do_execute(self, *args: Any, **kwargs: Any) -> Any:
        """Run a cell; one sent by a session brings its plan along in the request's metadata."""
        wire = _plan_of(self.get_parent("shell"))
        if wire is None:
            return await super().do_execute(*args, **kwargs)
        try:
            with self.life.cell(wire), self._numbered(wire), self._owned_threads():
                reply = await super().do_execute(*args, **kwargs)
                self.life.note_end(failed=reply["status"] != "ok")
                return reply
        except Exception as error:  # not the cell's own: without a reply the session would wait
            self.shell.showtraceback()
            reply = {"status": "error", "ename": type(error).__name__, "evalue": str(error)}
            return reply | {"traceback": []}  # shown already; the client wants the key

    def finish_metadata(
        self, parent: dict[str, Any], metadata: dict[str, Any], reply_content: dict[str, Any]
    ) -> dict[str, Any]:
        """Close the cell: its output has just been flushed, and the reply comes next."""
        if _plan_of(parent) is not None:
            failed = reply_content["status"] != "ok"
            try:
                metadata[METADATA_KEY] = self.life.close_cell(failed=failed)
            except Exception:  # without a reply the session would wait
                traceback.print_exc()
        return super().finish_metadata(parent, metadata, reply_content)

    def _publish_status(
        self, status: str, channel: str, parent: dict[str, Any] | None = None
    ) -> None:
        """Leave out that a cell has begun: its input, published next, says so."""
        request = parent or self.get_parent(channel)
        if status == "idle" or channel != "shell" or _plan_of(request) is None:
            super()._publish_status(status, channel, parent)

    def pre_handler_hook(self) -> None:
        """Take SIGINT while a request is handled."""
        self.interrupt_waits = self.stopped = False
        self.saved_sigint_handler = signal.signal(signal.SIGINT, self._on_sigint)

    def _on_sigint(self, number: int, frame: Any) -> None:
        # Raised anywhere else, it would end the handling of the request, and with it the reply.
        if not self.in_user_code:
            self.interrupt_waits = True
            return
        if imports_a_library(frame):
            press = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT))
            press.daemon = True
            press.start()
            return
        self.stopped = True
        if self.awaited is None or runs_users_code(frame):
            raise KeyboardInterrupt
        # The loop waits, or runs a task that the user has made: what is raised there ends the loop.
        self.awaited.get_loop().call_soon_threadsafe(self.awaited.cancel)

    @contextmanager
    def _cancel_on_sigint(self, future: asyncio.Future[Any]) -> Iterator[None]:
        """Have SIGINT end a cell with ``await``, by `_on_sigint`.

        ipykernel's own cancels in the loop's next turn, and does not bring that about; code
        between two awaits is not stopped at all.
        """
        self.awaited = future
        try:
            yield
        finally:
            self.awaited = None

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let SIGINT raise `KeyboardInterrupt`, one that came earlier in the request at once."""
        self.in_user_code = True
        try:
            if self.interrupt_waits:
                self.interrupt_waits, self.stopped = False, True
                raise KeyboardInterrupt
            yield
        finally:
            self.in_user_code = False

    @contextmanager
    def uninterruptible(self, *, for_good: bool) -> Iterator[None]:
        """Let no SIGINT cut off how the user's code has failed; ``for_good``: it has ended."""
        in_user_code, self.in_user_code = self.in_user_code, False
        try:
            yield
        finally:
            self.in_user_code = in_user_code and not for_good

    def _abort_queues(self, subshell_id: str | None = None) -> None:
        """Leave what is queued alone after a failed cell.

        The session sends a cell when the last has ended; the stock kernel would also abort the
        next one if that comes within its first event-loop turn.
        """

    @contextmanager
    def _numbered(self, wire: dict[str, Any]) -> Iterator[None]:
        """Give the cell its number in the notebook, and its lines those of the whole cell."""
        if wire["execution_count"] is not None:
            self.shell.execution_count = wire["execution_count"]
        self.shell.compile.header = wire["header"]
        try:
            yield
        finally:
            self.shell.compile.header = ""

    @contextmanager
    def _owned_threads(self) -> Iterator[None]:
        """Send what a thread prints to the cell that started the thread, however late."""
        parent, shell, start = self.get_parent("shell"), self.shell, threading.Thread.start

        def start_owned(thread: threading.Thread) -> None:
            run = thread.run

            def run_owned() -> None:
                shell.set_thread_parent(parent)
                run()

            thread.run = run_owned  # type: ignore[method-assign]
            start(thread)

        threading.Thread.start = start_owned  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            threading.Thread.start = start  # type: ignore[method-assign]


def cell_folder() -> str:
    """Return where cells' code is said to lie; the same on all ranks."""
    return os.path.join(tempfile.gettempdir(), CELL_FOLDER)


def imports_a_library(frame: types.FrameType | None) -> bool:
    """Return whether a library is being imported: half of a module can never be used again."""
    while frame is not None and not is_users(frame):
        if frame.f_code.co_filename.startswith(_IMPORTS):
            return True
        frame = frame.f_back
    return False


def _plan_of(request: dict[str, Any]) -> dict[str, Any] | None:
    return request.get("metadata", {}).get(METADATA_KEY)


def _from_program(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Begin a program's traceback with the program: the cell that runs it is not the user's."""
    entry = traceback
    while entry is not None and entry.tb_frame.f_code is not run_program.__code__:
        entry = entry.tb_next
    return traceback if entry is None else entry.tb_next or entry


def runs_users_code(frame: types.FrameType | None) -> bool:
    """Return whether what is raised in a frame of the main thread ends a cell, and no more."""
    while frame is not None and frame.f_code is not InteractiveShell.run_code.__code__:
        frame = frame.f_back
    return frame is not None


def _end_in_users_code(traceback: types.TracebackType | None) -> None:
    """Cut off where in a library the user's code was stopped.

    Nobody needs those entries, and their frames keep alive what is to end: a loader's workers.
    """
    last = None
    while traceback is not None:
        last = last if is_library(traceback.tb_frame) else traceback
        traceback = traceback.tb_next
    if last is not None:
        last.tb_next = None


def _hide_own_frames(traceback: types.TracebackType | None) -> None:
    """Unlink every entry of this package from a traceback but its first."""
    while traceback is not None:
        following = traceback.tb_next
        while following is not None and _is_own(following):
            following = following.tb_next
        traceback.tb_next = following
        traceback = following


def _cut_middle(traceback: types.TracebackType | None) -> None:
    """Leave out most of an endless recursion: IPython takes a minute for a thousand entries."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    if len(entries) > 2 * _KEPT_ENTRIES:
        entries[_KEPT_ENTRIES - 1].tb_next = entries[-_KEPT_ENTRIES]


def _is_own(entry: types.TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def this_shell() -> ZMQInteractiveShell:
    """Return the shell of the engine that this process is."""
    shell = get_ipython()
    assert isinstance(shell, ZMQInteractiveShell)
    return shell


@contextmanager
def _no_running_loop() -> Iterator[None]:
    loop = asyncio.events._get_running_loop()
    if loop is None:
        yield
        return
    swap_task = getattr(asyncio.tasks, "_swap_current_task", None)  # Python 3.12+
    task = swap_task(loop, None) if swap_task else None
    asyncio.events._set_running_loop(None)
    try:
        yield
    finally:
        asyncio.events._set_running_loop(loop)
        asyncio.set_event_loop(loop)  # asyncio.run() leaves the thread without one
        if swap_task:
            swap_task(loop, task)
