"""``%ddp`` and ``%%ddp``: parse, one call on the session, one view."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from traitlets import Bool, List, Undefined, Unicode, observe

from ddp_magic.core.cell import split_cell
from ddp_magic.core.options import Command, help_text, parse_cell_line, parse_command
from ddp_magic.core.pulled import chosen_names, pulled_line, pushed_line, variables_to_push
from ddp_magic.errors import CellError, CellSyntaxError, StartError, UsageError
from ddp_magic.kernel.completion import CellHelp

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ddp_magic.kernel.forks import ForkServer
    from ddp_magic.kernel.session import Session
    from ddp_magic.ui.cellview import NotebookView
    from ddp_magic.ui.doctor import DoctorView
    from ddp_magic.ui.inspection import DifferenceView, VariablesView
    from ddp_magic.ui.rankcharts import RankChartsView
    from ddp_magic.ui.stacks import StacksView
    from ddp_magic.ui.status import StatusTable


_STOPPED = "ddp: the ranks have been stopped; their variables are gone"


@magics_class
class DdpMagics(Magics):
    """The magics and the one session that they drive."""

    warm_start = Bool(
        True,
        help="Begin to import torch for the ranks, in the background, as the extension is loaded.",
    ).tag(config=True)
    preload = List(
        Unicode(),
        help="Modules to import once for all ranks, besides torch; counts from the next start on.",
    ).tag(config=True)

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._made: Session | None = None
        self._server: ForkServer | None = None
        self._session_lock = threading.Lock()
        self._warming: threading.Thread | None = None
        self.cell_help = CellHelp(shell, lambda: self._made)

    @property
    def session(self) -> Session:
        """The session; made at its first use, for ipyparallel takes a moment to import."""
        with self._session_lock:
            if self._made is None:
                from ddp_magic.kernel.session import Session

                self._made = Session(preload=self.preload, server=self._server)
                self._made.new_view = self._view
            return self._made

    def warm(self) -> None:
        """Begin what every start needs, if that is wanted."""
        if not self.warm_start:
            return
        # What fails here fails again, and is raised, as the ranks are started.
        with suppress(Exception):
            self._begin_import()
        self._warming = threading.Thread(target=self._warm, name="ddp warm start", daemon=True)
        self._warming.start()

    def _begin_import(self) -> None:
        """Have torch imported, before all else, for ipyparallel takes a moment to import here."""
        from ddp_magic.kernel.cluster import can_fork
        from ddp_magic.kernel.forks import ForkServer

        if can_fork():
            self._server = ForkServer(self.preload)
            self._server.fork_controller()

    def _warm(self) -> None:
        with suppress(Exception):
            self.session.warm()

    @observe("preload")
    def _preload_changed(self, change: dict[str, Any]) -> None:
        if change["old"] is not Undefined and self._made is not None:
            self._made.preload = change["new"]

    @no_var_expand
    @line_cell_magic
    def ddp(self, line: str, cell: str | None = None) -> Any:
        if cell is not None:
            return self._run_cell(line, cell)
        if not line.strip() and self._has_code_below():
            raise UsageError(
                "%ddp with one % runs nothing on the ranks: the code below it would run here.",
                fix="Write %%ddp.",
            )
        if line.split()[:1] in (["run"], ["start"], ["restart"]):
            line = self.shell.var_expand(line)  # `--epochs {n}`, as %run has it
        command = parse_command(line)
        return getattr(self, f"_{command.name}")(command)

    # What `%%ddp?` shows; the options are declared once, in core/options.py.
    ddp.__doc__ = f"Run a cell on every rank, or manage the ranks.\n\n{help_text()}"

    def close(self) -> None:
        """End the ranks and all that was started for them."""
        try:
            if self._warming is not None:
                self._warming.join()
        finally:
            if self._made is not None:
                if self._made.started:
                    print(_STOPPED)
                self._made.stop()
            elif self._server is not None:
                self._server.close()

    def _run_cell(self, line: str, cell: str) -> Any:
        options = parse_cell_line(line)
        if options.help:
            return print(help_text("%%ddp"))
        header, code = split_cell(line, cell, self._whole_cell())
        number = self.shell.displayhook.prompt_count
        try:
            return self.session.run(
                code, options, view=self._view(), header=header, execution_count=number
            )
        except SyntaxError as error:
            raise CellSyntaxError(error, f"Cell In[{number}]") from None
        except CellError as error:
            error.fix = error.fix or self._hint(error)
            raise
        except StartError as error:
            raise _hinted(error) from error.__cause__

    def _start(self, command: Command) -> None:
        wanted = command.start
        given: dict[str, Any] = {"backend": wanted.backend, "seed": wanted.seed}
        if self.session.started:
            self.session.check_same(wanted.nproc, **given)
            return print(f"ddp: running already: {self.session.describe()}")
        try:
            self.session.start(self._view(), nproc=wanted.nproc, **given)
        except StartError as error:
            raise _hinted(error) from error.__cause__

    def _restart(self, command: Command) -> None:
        wanted = command.start
        self.session.restart(
            wanted.nproc, backend=wanted.backend, seed=wanted.seed, view=self._view()
        )

    def _heal(self, _: Command) -> None:
        self.session.heal(self._view())

    def _stop(self, _: Command) -> None:
        started = self.session.started
        self.session.stop()
        print(_STOPPED if started else "ddp: there were no ranks")

    def _interrupt(self, _: Command) -> None:
        told = "the cell is being stopped" if self.session.interrupt() else "no cell is running"
        print(f"ddp: {told}")

    def _run(self, command: Command) -> Any:
        assert command.program is not None
        number = self.shell.displayhook.prompt_count
        try:
            return self.session.run_program(
                command.program, command.cell, view=self._view(), execution_count=number
            )
        except SyntaxError as error:
            raise CellSyntaxError(error, f"File {command.program.name}") from None

    def _pull(self, command: Command) -> None:
        paths, ranks = chosen_names(command.names, command.as_name), command.ranks
        only = ranks[0] if ranks and len(ranks) == 1 else None
        self.shell.push(self.session.pull_all(paths, ranks if only is None else only))
        print(pulled_line(paths, ranks or range(self.session.world_size)))

    def _push(self, command: Command) -> None:
        variables = variables_to_push(command.names, self.shell.user_ns)
        self.session.push(variables, command.ranks)
        print(pushed_line(variables, command.ranks or range(self.session.world_size)))

    def _status(self, _: Command) -> StatusTable:
        from ddp_magic.ui.status import StatusTable

        return StatusTable(self.session.status())

    def _vars(self, command: Command) -> VariablesView:
        from ddp_magic.ui.inspection import VariablesView

        return VariablesView.of(self.session.vars("".join(command.names), command.ranks))

    def _diff(self, command: Command) -> DifferenceView:
        from ddp_magic.ui.inspection import DifferenceView

        return DifferenceView.of(self.session.diff(command.names[0], command.ranks))

    def _plot(self, _: Command) -> RankChartsView:
        from ddp_magic.ui.rankcharts import RankChartsView

        return RankChartsView(self.session.plot())

    def _debug(self, command: Command) -> None:
        self.session.debug(*command.ranks or (), view=self._view())

    def _where(self, command: Command) -> StacksView:
        from ddp_magic.ui.stacks import StacksView

        return StacksView(self.session.where(command.ranks))

    def _doctor(self, _: Command) -> DoctorView:
        from ddp_magic.kernel.doctor.examination import examine  # not the session: it may be broken
        from ddp_magic.ui.doctor import DoctorView, frontend_of

        frontend, started = frontend_of(self.shell), self._made is not None and self._made.started
        return DoctorView(examine(frontend, self._server, ranks_run=started), frontend)

    def _session(self, _: Command) -> Session:
        return self.session

    def _help(self, command: Command) -> None:
        print(help_text(command.topic))

    def _has_code_below(self) -> bool:
        """Whether the cell that runs begins with ``%ddp`` and goes on."""
        first, *rest = self._whole_cell().strip().split("\n")
        return first.strip() == "%ddp" and any(line.strip() for line in rest)

    def _whole_cell(self) -> str:
        """Return the text of the notebook's cell that runs; ``""`` where there is none."""
        request: dict[str, Any] = getattr(self.shell, "get_parent", dict)()
        return str(request.get("content", {}).get("code", ""))

    def _hint(self, error: CellError) -> str:
        first = error.story.first
        if first is None or first.missing_name not in self.shell.user_ns:
            return ""
        return (
            f"`{first.missing_name}` is defined in the notebook, not on the ranks:"
            " define it in a %%ddp cell."
        )

    def _view(self) -> NotebookView:
        from ddp_magic.ui.cellview import NotebookView

        return NotebookView(self.shell)


def _hinted(error: StartError) -> StartError:
    from ddp_magic.kernel.doctor.examination import hinted

    return hinted(error)
