"""``%ddp`` and ``%%ddp``: parse, one call on the session, one view."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from ddp_magic.core.options import Command, help_text, parse_cell_line, parse_command
from ddp_magic.errors import CellSyntaxError

if TYPE_CHECKING:
    from ddp_magic.core.status import SessionStatus
    from ddp_magic.kernel.session import Session


@magics_class
class DdpMagics(Magics):
    """The magics and the one session that they drive."""

    _session: Session | None = None

    @property
    def session(self) -> Session:
        """The session; made at its first use, for ipyparallel takes a moment to import."""
        if self._session is None:
            from ddp_magic.kernel.session import Session

            self._session = Session()
        return self._session

    @no_var_expand
    @line_cell_magic
    def ddp(self, line: str, cell: str | None = None) -> Any:
        """Run a cell on every rank (``%%ddp``), or manage the ranks (``%ddp``).

        ``%%ddp -h`` and ``%ddp -h`` list the options.
        """
        if cell is not None:
            return self._run_cell(line, cell)
        command = parse_command(line)
        return getattr(self, f"_{command.name}")(command)

    def close(self) -> None:
        """End the ranks."""
        if self._session is not None:
            self._session.stop()

    def _run_cell(self, line: str, cell: str) -> Any:
        from ddp_magic.kernel.source import check_syntax
        from ddp_magic.ui.cellview import NotebookView

        options = parse_cell_line(line)
        if options.help:
            return print(help_text("%%ddp"))
        header = f"%%ddp {line}".rstrip() + "\n"
        number = self.shell.displayhook.prompt_count
        try:
            check_syntax(cell, header)
        except SyntaxError as error:
            raise CellSyntaxError(error, f"Cell In[{number}]") from None
        self.session.configure(options.nproc, backend=options.backend)
        if not self.session.started:
            self._start_ranks()
        return self.session.run(
            cell,
            options,
            view=NotebookView(self.shell),
            header=header,
            execution_count=number,
        )

    def _start(self, command: Command) -> None:
        wanted = command.start
        self.session.configure(wanted.nproc, backend=wanted.backend, seed=wanted.seed)
        if self.session.started:
            return print(f"ddp: {self.session.describe()} run already")
        self._start_ranks()

    def _restart(self, command: Command) -> None:
        wanted = command.start
        self.session.stop()
        self.session.configure(wanted.nproc, backend=wanted.backend, seed=wanted.seed)
        self._start_ranks()

    def _stop(self, _: Command) -> None:
        self.session.stop()

    def _status(self, _: Command) -> SessionStatus:
        from ddp_magic.ui.status import StatusTable

        return StatusTable(self.session.status())

    def _help(self, command: Command) -> None:
        print(help_text(command.topic))

    def _start_ranks(self) -> None:
        from ddp_magic.ui.cellview import NotebookView

        began_s = time.monotonic()
        self.session.start()
        took_s = time.monotonic() - began_s
        NotebookView(self.shell).notice(f"ddp: {self.session.describe()}, ready in {took_s:.1f} s")
