"""pdb on a rank: `breakpoint()` and its likes stop here, and ask in the notebook."""

from __future__ import annotations

import bdb
import code
import codeop
import ctypes
import io
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ClassVar

import ipykernel
import IPython
from IPython.core import debugger
from IPython.core.interactiveshell import InteractiveShell

from ddp_magic.core.question import Asks
from ddp_magic.core.where import Place
from ddp_magic.rank.frames import is_library
from ddp_magic.rank.prompts import LeaveError, Prompts
from ddp_magic.rank.script import run_program
from ddp_magic.rank.shell import cell_folder, this_shell
from ddp_magic.rank.where import place_of

_OWN = f"{Path(__file__).parents[1]}/"
_MACHINERY = (
    _OWN,
    *(f"{Path(file).parent}/" for file in (IPython.__file__, ipykernel.__file__) if file),
)
_RUNS_CODE = (InteractiveShell.run_code.__code__, run_program.__code__)
_STEPS = ("n", "next", "s", "step", "r", "return", "unt", "until", "j", "jump")
_MOST_SAID = 10_000  # characters, between two questions
_LEFT_OUT = "\n... {:,} characters are left out ...\n"
_OF_FRAMES = ("__return__", "__exception__")  # what pdb writes into the variables of a frame


class RankPdb(debugger.Pdb):
    """IPython's pdb, which reads its lines from the notebook and ends where the user's code does.

    Attributes
    ----------
    prompts
        Who asks in the notebook.
    is_asking
        Whether it is being asked what to do.
    """

    prompts: ClassVar[Prompts]

    def __init__(
        self, completekey: Any = None, stdin: Any = None, stdout: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(completekey, stdin, stdout or io.StringIO(), nosigint=True, **kwargs)
        self.is_asking = False
        self._steps_in = True  # whether it goes on by `step`
        self._has_stepped = False  # whether it has stopped by itself, and not at `breakpoint()`
        self._callers: list[FrameType] = []  # the frames that were there when it went on
        self._is_post_mortem = False
        self._is_between = False  # whether a statement of the cell has ended, the next not begun
        self._interrupt: KeyboardInterrupt | None = None

    # ---- where it stops

    def set_trace(self, frame: FrameType | None = None, **_: Any) -> None:
        """Stop in a frame, at once; what is typed says whether to step on from there."""
        frame = frame or sys._getframe(1)
        self.reset()
        self.botframe = _outermost(frame)
        self._has_stepped = False
        self.interaction(frame, None)
        self._has_stepped = True
        if self.quitting:
            raise bdb.BdbQuit
        if self.stoplineno != -1 or self.breaks:
            self._trace(frame)

    def _trace(self, frame: FrameType) -> None:
        entry: FrameType | None = frame
        while entry is not None:
            entry.f_trace = self.trace_dispatch
            entry = None if entry is self.botframe else entry.f_back
        sys.settrace(self.trace_dispatch)

    def look_into(self, error: BaseException) -> None:
        """Show the frames in which an error was raised, beginning with the user's innermost."""
        self.reset()
        self.interaction(None, error)

    def setup(self, frame: FrameType | None, entries: TracebackType | None) -> Any:
        """Begin, after a failure, with the user's own code, and not with what it has called."""
        done = super().setup(frame, entries)
        if self._is_post_mortem:
            own = [i for i, (entry, _) in enumerate(self.stack) if not is_library(entry)]
            if own and own[-1] != self.curindex:
                self.curindex, self.lineno = own[-1], None
                self.curframe = self.stack[self.curindex][0]
                if sys.version_info < (3, 13):
                    self.curframe_locals = self.curframe.f_locals
        return done

    def stop_here(self, frame: FrameType) -> bool:
        """Stop not in what runs the cell; between two statements of a cell, in the cell alone."""
        if _is_machinery(frame) or (self._is_between and not _is_cell(frame)):
            return False
        if self.stopframe is None and not (self._is_between or self._steps_in):
            return frame in self._callers  # `next` at the end of a function steps into no other
        return bool(super().stop_here(frame))

    def user_call(self, frame: FrameType, argument_list: Any) -> None:
        """Take the next statement of a cell, which is a frame of its own, for its next line."""
        if not self._is_between:
            super().user_call(frame, argument_list)

    def user_line(self, frame: FrameType) -> None:
        """Stop at a line."""
        if self._is_between:
            self._is_between = False
            self.botframe = frame
        super().user_line(frame)

    def dispatch_return(self, frame: FrameType, value: Any) -> Any:
        """Go on, at the end of a statement of the cell, or as that awaits, to the next one."""
        if frame is not self.botframe or self.stoplineno == -1:
            return super().dispatch_return(frame, value)
        self._is_between = True
        self.set_step()
        return self.trace_dispatch

    # ---- what it asks

    def interaction(self, frame: FrameType | None, tb_or_exc: Any) -> None:
        """Ask what to do until that is to go on; go on, and say so, if nobody can be asked.

        Raises
        ------
        KeyboardInterrupt
            The cell is being stopped.
        """
        if refusal := self.prompts.refusal:
            print(f"ddp: pdb was passed over: {refusal}", file=sys.stderr)
            return self.set_continue()
        self._steps_in, self.is_asking = False, True
        self._is_post_mortem = frame is None
        super().interaction(frame, tb_or_exc)
        self.is_asking = False
        if frame is not None and frame.f_locals is frame.f_globals:
            for name in _OF_FRAMES:
                frame.f_globals.pop(name, None)
        if self._interrupt is not None:
            error, self._interrupt = self._interrupt, None
            sys.settrace(None)
            raise error
        sys.stdout.write(self._take_said())
        if self.quitting or self.stoplineno == -1:
            self.prompts.resume()

    def do_step(self, arg: str) -> Any:
        """s(tep)

        Go on, and stop at the next line, also in what this line calls.
        """
        self._steps_in = True
        return super().do_step(arg)

    do_s = do_step

    def do_run(self, arg: str) -> None:
        """run

        Is for programs that pdb has started itself.
        """
        self.error("a cell cannot begin anew from here: `q` ends it, and it can be run again")

    do_restart = do_run

    def help_rank(self) -> None:
        """Explain ``rank 2``."""
        self.message("rank N: ask rank N from now on, of those that have stopped")

    def help_all(self) -> None:
        """Explain ``all x``."""
        self.message("all LINE, 0,2 LINE: give a line to all ranks that have stopped, or to some")

    def onecmd(self, line: str) -> Any:
        """Do what a line says; ``x?`` is answered here, where a pager would be shown otherwise."""
        if self._is_post_mortem and self.parseline(line)[0] in _STEPS:
            self.error("the code has ended: `up` and `down` go through its frames, `q` leaves")
            return False
        with self._as_pager():
            return super().onecmd(line)

    def default(self, line: str) -> Any:
        """Run a statement, of which more lines are asked for if there are to be more."""
        if (whole := self._whole(line.removeprefix("!"))) is not None:
            super().default(whole)
            _keep_assigned(self.curframe)

    def _whole(self, line: str) -> str | None:
        """Return a statement to its end; None if it is not wanted any more."""
        tried = f"{line}\n"
        try:
            while codeop.compile_command(tried, "<stdin>", "single") is None:
                tried = line = line + "\n" + (more := self._ask(Asks.CONSOLE, "...   "))
                if not more:
                    break
        except LeaveError as left:
            self.cmdqueue.append(left.line)
            return None
        except EOFError:
            return None
        except (SyntaxError, ValueError, OverflowError):
            pass  # which is told when it is compiled to be run
        return line

    def cmdloop(self, intro: Any = None) -> None:
        """Read lines and do what they say."""
        self.preloop()
        stop: Any = None
        while not stop:
            line = self.cmdqueue.pop(0) if self.cmdqueue else self._ask(Asks.DEBUGGER, self.prompt)
            line = self.precmd(line)
            stop = self.postcmd(self.onecmd(line), line)
        self._callers = [frame for frame, _ in self.stack]
        self.postloop()

    def _cmdloop(self) -> None:
        try:
            self.cmdloop()
        except KeyboardInterrupt as error:  # which IPython's pdb would take for its own
            self._interrupt = error

    def do_interact(self, arg: str) -> None:
        """interact

        Start an interactive interpreter in the current scope; exit() leaves it.
        """
        assert self.curframe is not None
        console = _Console(self, {**self.curframe.f_globals, **self._curframe_locals})
        save, sys.displayhook = sys.displayhook, self.displayhook
        try:
            with redirect_stdout(self.stdout), redirect_stderr(self.stdout):
                console.interact(banner="exit() leaves this console", exitmsg="")
        finally:
            sys.displayhook = save
        if console.interrupt is not None:
            raise console.interrupt

    def _ask(self, asks: Asks, prompt: str) -> str:
        return self.prompts.ask(
            asks,
            prompt,
            self._place(),
            said=self._take_said(),
            has_stepped=self._has_stepped,
            is_post_mortem=self._is_post_mortem,
        )

    def _place(self) -> Place:
        """Return where the user's code has stopped."""
        own = [entry for entry in self.stack[: self.curindex + 1] if not is_library(entry[0])]
        frame, line = own[-1] if own else self.stack[self.curindex]
        return place_of(frame, line, cell_folder())

    def _take_said(self) -> str:
        if not isinstance(self.stdout, io.StringIO):
            return ""
        said = self.stdout.getvalue()
        self.stdout.seek(0)
        self.stdout.truncate()
        if len(said) > _MOST_SAID:
            half = _MOST_SAID // 2
            said = said[:half] + _LEFT_OUT.format(len(said) - 2 * half) + said[-half:]
        return said

    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        """Call a cell by its name, and not by the file that it is said to be in."""
        return _with_cells_named(str(super().format_stack_entry(frame_lineno, lprefix)))

    def message(self, msg: object, end: str = "\n") -> None:
        """Print what a command has to say."""
        print(_with_cells_named(str(msg)), end=end, file=self.stdout)

    def hidden_frames(self, stack: list[tuple[FrameType, int]]) -> list[bool]:
        """Hide this package's own frames as well."""
        hidden = super().hidden_frames(stack)
        return [
            bool(is_hidden) or (frame is not self.curframe and _is_own(frame))
            for is_hidden, (frame, _) in zip(hidden, stack, strict=True)
        ]

    @contextmanager
    def _as_pager(self) -> Iterator[None]:
        def show(data: Any, *_: Any, **__: Any) -> None:
            self.message(data["text/plain"] if isinstance(data, dict) else data)

        hooks = this_shell().hooks
        pager, hooks.show_in_pager = hooks.show_in_pager, show
        try:
            yield
        finally:
            hooks.show_in_pager = pager


class _Console(code.InteractiveConsole):
    """The console of `interact`."""

    def __init__(self, owner: RankPdb, names: dict[str, Any]) -> None:
        super().__init__(names, "*interactive*")
        self._owner = owner
        self.interrupt: KeyboardInterrupt | None = None

    def showtraceback(self) -> None:
        """Print it: what is raised is not the cell's."""
        kind, error, entries = sys.exc_info()
        own = entries and entries.tb_next
        self.write("".join(traceback.format_exception(kind, error, own)))

    def showsyntaxerror(self, filename: str | None = None, **_: Any) -> None:
        """Print it."""
        self.write("".join(traceback.format_exception_only(*sys.exc_info()[:2])))

    def raw_input(self, prompt: str = "") -> str:
        prompt = "... " if prompt == sys.ps2 else ">>> "  # not IPython's, which number cells
        try:
            line = self._owner._ask(Asks.CONSOLE, prompt)
        except LeaveError as left:
            self._owner.cmdqueue.append(left.line)
            raise
        except KeyboardInterrupt as error:  # the console would go on
            self.interrupt = error
            raise EOFError from None
        if line.strip() in ("exit", "quit", "exit()", "quit()"):
            raise EOFError
        return line


def _keep_assigned(frame: FrameType | None) -> None:
    """Have a function's variables take what was assigned to them; Python 3.13 does so itself."""
    if sys.version_info < (3, 13) and frame is not None:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def _with_cells_named(text: str) -> str:
    def name(found: re.Match[str]) -> str:
        known = this_shell().compile.format_code_name(found[0])
        return known[1] if known else found[0]

    return re.sub(re.escape(cell_folder()) + r"/\d+\.py", name, text)


def _outermost(frame: FrameType) -> FrameType:
    """Return the frame in which the user's code begins: of a cell's statement, or a program."""
    while frame.f_back is not None and frame.f_back.f_code not in _RUNS_CODE:
        frame = frame.f_back
    return frame


def _is_machinery(frame: FrameType) -> bool:
    """Return whether a frame is of what runs cells and shows what they print."""
    return frame.f_code.co_filename.startswith(_MACHINERY)


def _is_own(frame: FrameType) -> bool:
    """Return whether a frame is of this package."""
    return frame.f_code.co_filename.startswith(_OWN)


def _is_cell(frame: FrameType) -> bool:
    """Return whether a frame is that of a statement of a cell."""
    back = frame.f_back
    in_cell = frame.f_code.co_filename.startswith(cell_folder())
    return in_cell and back is not None and back.f_code in _RUNS_CODE
