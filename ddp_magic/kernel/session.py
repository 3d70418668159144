"""A session: ranks that live from cell to cell, and everything that can be asked of them."""

from __future__ import annotations

import importlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from ddp_magic.core.difference import Difference
from ddp_magic.core.failed import Failed
from ddp_magic.core.failures import FailureStory, way_back
from ddp_magic.core.lifecycle import Event, Lifecycle
from ddp_magic.core.names import VariablePath, parse_path
from ddp_magic.core.options import CellOptions, Program, StartOptions, module_names
from ddp_magic.core.plan import CellPlan
from ddp_magic.core.processend import ProcessEnd
from ddp_magic.core.rankcharts import RankCharts
from ddp_magic.core.ranks import check_ranks, named
from ddp_magic.core.stacks import Stacks
from ddp_magic.core.status import SessionStatus
from ddp_magic.core.vartable import Variables
from ddp_magic.core.view import View
from ddp_magic.errors import (
    CellInterrupted,
    CellTimeout,
    DdpMagicError,
    Interrupted,
    StateError,
    UsageError,
)
from ddp_magic.kernel import inspection
from ddp_magic.kernel.background import BackgroundCell
from ddp_magic.kernel.cellrun import METADATA_KEY, CellRun
from ddp_magic.kernel.cluster import Cluster, Events, local_cluster
from ddp_magic.kernel.devices import gpu_count
from ddp_magic.kernel.forks import ForkServer
from ddp_magic.kernel.interrupts import uninterrupted
from ddp_magic.kernel.progress import Progress
from ddp_magic.kernel.rankcharts import gather_charts
from ddp_magic.kernel.rankview import RankView
from ddp_magic.kernel.source import check_program, check_syntax
from ddp_magic.kernel.stacks import ask_stacks
from ddp_magic.kernel.textview import TextView
from ddp_magic.kernel.transfer import Transfer
from ddp_magic.kernel.world import Losses, World, plan_topology, start_world

_TIMEOUT_GRACE_S = 5.0  # how long a cell whose time is over has to end
_KILL_GRACE_S = 2.0
_SETTLE_S = 0.2
_END_GRACE_S = 0.5
_NOT_IN_BACKGROUND = "a cell in the background cannot ask"
_HEAL_STOPPED = "no rank was replaced; those that live are as they were"
_SUBGROUPS_GONE = "the process group was made anew: make those of dist.new_group anew as well"
_START_STOPPED = "the start was stopped; nothing of it is left"


class Session:
    """Ranks that train together and keep their variables from cell to cell.

    Parameters
    ----------
    nproc
        Number of ranks; by default one per visible GPU, or 2 on the CPU.
    backend
        ``"auto"``, ``"nccl"`` or ``"gloo"``.
    seed
        The one seed that all ranks start from; by default a new one each time.
    preload
        Modules that are imported once, with torch, before the ranks are made: those that take
        long to import, and touch no GPU while they do.
    server
        A fork server that has been started with ``preload`` already, to be this session's.

    Attributes
    ----------
    new_view
        Makes the view of a call that is given none.

    Examples
    --------
    >>> with Session(nproc=2) as session:
    ...     session.run("x = rank + 1")
    ...     session.pull("x")
    [1, 2]
    """

    def __init__(
        self,
        nproc: int | None = None,
        *,
        backend: str | None = None,
        seed: int | None = None,
        preload: Iterable[str] = (),
        server: ForkServer | None = None,
    ) -> None:
        self._defaults = StartOptions().changed(nproc=nproc, backend=backend, seed=seed)
        self._wanted = self._defaults  # of the ranks that run
        self.new_view: Callable[[], View] = TextView
        self._process = os.getpid()
        self._life = Lifecycle()
        self._life_lock = threading.RLock()
        self._losses = Losses()
        self._cluster = local_cluster(self._events(), module_names(preload), server)
        # When this process ends it may be given a few seconds only, so nothing is waited for.
        self._finalizer = weakref.finalize(self, _stop_in, self._process, self._cluster)
        self._world: World | None = None
        self._last_errors: dict[int, str] = {}
        self._failed: Failed | None = None  # the last cell that has
        self._cell_count = 0
        self._last_number = 0  # of the last cell that was not to look into another
        self._apart = False  # the ranks may not all have run the same code to its end
        self._group_is_broken = False
        self._run: CellRun | None = None
        self._last_run: CellRun | None = None  # kept for what is printed when it has ended
        self._background: BackgroundCell | None = None

    # ---- the ranks' life

    def start(
        self,
        view: View | None = None,
        *,
        nproc: int | None = None,
        backend: str | None = None,
        seed: int | None = None,
    ) -> None:
        """Start the ranks; they are ready, and have made a first collective, when this returns.

        Parameters
        ----------
        view
            Where a line about them is shown.
        nproc, backend, seed
            For these ranks, instead of what the session was made with.

        Raises
        ------
        UsageError, SetupError
            What was asked for cannot be had here; nothing was started.
        StartError
            The ranks did not start; nothing is left running.
        StateError
            They run already.
        """
        wanted = self._defaults.changed(nproc=nproc, backend=backend, seed=seed)
        self._start(wanted, view)

    def _start(self, wanted: StartOptions, view: View | None) -> None:
        self._on(Event.START)
        self._losses.clear()
        progress = Progress(view)
        try:
            topology = plan_topology(wanted, self.preload)
        except BaseException:
            self._on(Event.START_FAILED)
            raise
        try:
            world = start_world(self._cluster, topology, wanted, self._losses, progress.tell)
            self._on(Event.RANKS_READY)
        except BaseException as error:
            by_hand = isinstance(error, KeyboardInterrupt)
            with uninterrupted(_START_STOPPED):
                self._cluster.stop()
                event = Event.STOPPED if by_hand else Event.START_FAILED
                if self._life.allows(event):  # another thread may have stopped the session
                    self._on(event)
                progress.end("the ranks did not start")
            if by_hand:
                raise Interrupted(_START_STOPPED) from None
            raise
        self._world, self._wanted = world, wanted
        progress.end(f"{world.describe()}, ready in {progress.elapsed_s:.1f} s", always=True)

    def warm(self) -> None:
        """Do, and wait for, what can be done before a start, so that it takes half a second.

        Torch goes on being imported after this returns. May be called on any thread.
        """
        self._cluster.warm()
        gpu_count()
        importlib.import_module("numpy")  # ipyparallel does, with the first call

    @property
    def preload(self) -> tuple[str, ...]:
        """Modules that are imported before ranks are made; a change counts at the next start."""
        return self._cluster.preload

    @preload.setter
    def preload(self, modules: Iterable[str]) -> None:
        self._cluster.preload = module_names(modules)

    def stop(self) -> None:
        """End the ranks and all that was started for them; their variables are gone.

        Does nothing if there is nothing to end.
        """
        if os.getpid() != self._process:
            return  # a copy in a process that was forked from the owner's
        with uninterrupted("the ranks have been ended all the same"):
            self._end_ranks()
            self._cluster.stop()
        self._wanted = self._defaults

    def _end_ranks(self) -> None:
        """End the ranks, but not what makes them."""
        if not self._life.allows(Event.STOP):
            return
        self._on(Event.STOP)
        self._losses.lost = "the session was stopped"  # for whoever waits on another thread
        if self._run is not None:
            self._run.lose_all("was stopped")
        self._cluster.end_ranks(_END_GRACE_S)
        if self._world is not None:
            self._world.close()
        self._world = self._run = self._background = None
        self._last_errors, self._apart, self._group_is_broken = {}, False, False
        self._failed = None
        self._on(Event.STOPPED)

    def restart(
        self,
        nproc: int | None = None,
        *,
        backend: str | None = None,
        seed: int | None = None,
        view: View | None = None,
    ) -> None:
        """End the ranks and start new ones, as before but for what is given.

        What cannot be had is refused before anything is ended.
        """
        wanted = self._wanted.changed(nproc=nproc, backend=backend, seed=seed)
        plan_topology(wanted, self.preload, running=self.world_size)
        with uninterrupted("the ranks have been ended, and no new ones started"):
            self._end_ranks()
        self._start(wanted, view)

    def heal(self, view: View | None = None) -> None:
        """Replace ranks that have died by new ones with the variables of one that lives.

        Parameters
        ----------
        view
            Where a line about it is shown.

        Raises
        ------
        StateError
            There is no rank left, one is busy, or nothing can be replaced here.
        SetupError, StartError
            There are no new ranks; those that live are as they were.
        """
        world = self._ranks()
        if self._background is not None and not self._background.done and self._run is not None:
            raise StateError(
                f"A cell runs in the background on {named(self._run.busy)}.",
                fix="Wait for it, or stop it, and heal then.",
            )
        self._await_last_run()
        progress = Progress(view, "healing")
        if not world.dead:
            return progress.end(f"no rank is dead: {world.describe()}", always=True)
        self._on(Event.HEAL)
        try:
            healed = world.heal(progress.tell)
            self._apart, self._group_is_broken = True, False
            self._end_heal(world)
        except BaseException as error:
            with uninterrupted(_HEAL_STOPPED):
                if self._life.allows(Event.HEAL_FAILED):  # the session may have been stopped
                    self._on(Event.HEAL_FAILED)
                progress.end("no rank was replaced")
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(_HEAL_STOPPED) from None
            raise
        for rank in healed.ranks:
            self._last_errors.pop(rank, None)
        self._failed = self._failed and self._failed.without(healed.ranks)
        progress.end(healed.line(progress.elapsed_s), always=True)

    def _end_heal(self, world: World) -> None:
        with self._life_lock:  # so that a death is noted before or after
            if world.dead:
                raise StateError(
                    f"Died meanwhile: {FailureStory({}, (), world.dead).summary()}.",
                    fix=f"{way_back(world.dead, world.engines)}.",
                )
            self._on(Event.HEALED)

    def check_same(
        self, nproc: int | None = None, *, backend: str | None = None, seed: int | None = None
    ) -> None:
        """Raise `StateError` if the ranks that run have died, or are unlike what is given."""
        world = self._ranks()
        world.targets(None)
        world.check_same(StartOptions(nproc, backend, seed))

    @property
    def folder(self) -> str:
        """The session's private folder; ``""`` if nothing runs."""
        return self._cluster.folder()

    @property
    def started(self) -> bool:
        """Whether there are ranks."""
        return self._world is not None

    @property
    def world_size(self) -> int:
        """Number of ranks, 0 before they start."""
        return self._world.size if self._world else 0

    def describe(self) -> str:
        """Return one line on the ranks that run: how many, on what, over which backend."""
        return self._ranks().describe()

    def status(self) -> SessionStatus:
        """Return the state of the session and of each rank, at once, whatever the ranks do."""
        world, state = self._world, self._life.state.value
        if world is None:
            return SessionStatus(state)
        if len(world.dead) == world.size and not self._losses.lost:
            state = "all ranks have died"
        busy = self._run.busy if self._run else ()
        ranks = (
            world.status_of(rank, busy=rank in busy, last_error=self._last_errors.get(rank, ""))
            for rank in world.engines
        )
        return SessionStatus(state, world.topology.backend, world.seed, tuple(ranks))

    def plot(self) -> RankCharts:
        """Return the losses of each rank in the last cell, and how long its steps took.

        Also while the cell runs.

        Raises
        ------
        StateError
            No rank runs, or no cell has run.
        """
        world, run = self._ranks(), self._last_run
        if run is None:
            raise StateError("There is nothing to draw: no cell has run.")
        return gather_charts(world, run)

    def where(self, ranks: Iterable[int] | None = None) -> Stacks:
        """Return where ranks are (by default all), also while they run a cell; on any thread.

        Raises
        ------
        UsageError
            There is no such rank.
        StateError
            No rank runs.
        """
        return ask_stacks(self._ranks(), ranks, self._run)

    # ---- cells

    def run(
        self,
        code: str,
        options: CellOptions | None = None,
        *,
        view: View | None = None,
        header: str = "",
        execution_count: int | None = None,
        **changes: Any,
    ) -> BackgroundCell | None:
        """Run code on the ranks, starting them first if need be.

        Parameters
        ----------
        code
            A cell: Python, magics, ``!shell``, top-level ``await``.
        options
            As for ``%%ddp``; ``changes`` are options by name (``ranks=(0,)``, ``background=True``).
        view
            Where the output goes; by default this process's own streams.
        header
            The lines above ``code`` in its notebook cell, for line numbers.
        execution_count
            The cell's number in the notebook, for tracebacks; by default cells are counted.

        Returns
        -------
        BackgroundCell or None
            A handle, if ``background`` was asked for.

        Raises
        ------
        SyntaxError
            Before anything runs.
        CellError
            The cell failed on one rank or more.
        CellInterrupted
            It was stopped (a `KeyboardInterrupt`).
        CellTimeout
            It ran longer than ``timeout_s``.
        """
        options = replace(options or CellOptions(), **changes)
        check_syntax(code, header)
        return self._run_cell(code, options, view or self.new_view(), header, execution_count)

    def _run_cell(
        self,
        code: str,
        options: CellOptions,
        view: View,
        header: str = "",
        execution_count: int | None = None,
        looks_into: Failed | None = None,
    ) -> BackgroundCell | None:
        if self._world is None:
            self.start(view, nproc=options.nproc, backend=options.backend)
        else:
            self._world.check_same(StartOptions(options.nproc, options.backend))
        if self._background is not None and not self._background.done:
            view.progress("ddp: waits for the cell in the background; `%ddp interrupt` stops that")
        self._await_last_run()
        world = self._ranks()
        engines = world.targets(options.ranks)
        if self._group_is_broken and not world.dead:
            if world.regroup():
                view.notice(f"ddp: {_SUBGROUPS_GONE}")
            self._group_is_broken = False
        self._cell_count += 1
        if looks_into is None:
            self._last_number = self._cell_count
        no_input = _NOT_IN_BACKGROUND if options.background else view.no_input()
        plan = self._plan(
            options, tuple(engines), header, execution_count or self._cell_count, no_input
        )
        run = CellRun(world, engines, view, options.output, header + code, looks_into)
        run.name = f"In[{plan.execution_count}]"

        def start() -> None:
            with uninterrupted(""):  # Stop would leave ranks of which nothing is heard
                self._on(Event.RUN_CELL)
                self._run = self._last_run = run
                view.begin()
                run.start(code, {METADATA_KEY: plan.to_wire()})

        view.offer_controls(self.interrupt, lambda: str(self.where()))
        if not options.background:
            self._follow(run, options.timeout_s, start)
            return None
        start()
        follow = partial(self._follow, run, options.timeout_s)
        self._background = BackgroundCell(follow, self.interrupt, view)
        return self._background

    def run_program(
        self,
        program: Program,
        options: CellOptions | None = None,
        *,
        view: View | None = None,
        execution_count: int | None = None,
    ) -> BackgroundCell | None:
        """Run a script or module on the ranks as ``__main__``; its globals stay there.

        Parameters
        ----------
        program
            What to run. A script's path is that of this process's working directory.

        Raises
        ------
        UsageError
            There is no such script.
        SyntaxError
            It cannot be compiled; nothing was run.
        CellError, CellInterrupted, CellTimeout
            As of `run`.
        """
        path = ""
        if not program.is_module:
            file = Path(program.name).expanduser().absolute()
            if not file.is_file():
                kind = "is a folder" if file.is_dir() else "is not there"
                raise UsageError(f"%ddp run {program.name}: {file} {kind}.")
            path = str(file)
            check_program(path)
        call = f"{program.name!r}, {list(program.args)!r}, {path!r}, {program.is_module}"
        code = f"get_ipython().run_program({call})"
        return self.run(code, options, view=view, execution_count=execution_count)

    def debug(self, rank: int | None = None, *, view: View | None = None) -> None:
        """Look, with pdb, into the frames in which the last cell that failed did so.

        They are as they were then, whatever has become of the process group since.

        Parameters
        ----------
        rank
            Of whose frames; by default of the rank that failed first. It can be changed there.
        view
            Where it is asked what to do; by default this process's own terminal.

        Raises
        ------
        UsageError
            That rank did not fail.
        StateError
            None has, or those that have are gone, or nobody can be asked here.
        """
        view = view or self.new_view()
        world, failed = self._ranks(), self._failed
        if failed is None:
            raise StateError("There is nothing to look into: no cell has failed.")
        failed = failed.without(world.dead)
        failed.check(rank)
        if why := view.no_input():
            raise StateError(f"%ddp debug asks what to look at, and {why}.")
        if failed.number != self._last_number:
            view.notice(
                f"ddp: the last cell that keeps the frames in which it failed is {failed.name}"
            )
        code = f"get_ipython().post_mortem({failed.number})"
        # Not wrapped: models that have come apart are seen so, and made equal by the next cell.
        options = CellOptions(ranks=failed.ranks, wrap=False, shard=False, plot=False)
        self._run_cell(code, options, view, looks_into=failed.beginning_with(rank))

    def interrupt(self) -> bool:
        """Stop the running cell on all its ranks, as Ctrl-C would; return whether there was one.

        Ranks of which it was said that this does not end them are killed.
        """
        run = self._run
        if run is None or not run.busy or not self._life.allows(Event.INTERRUPT):
            return False
        self._on(Event.INTERRUPT)
        run.stopped = True
        if run.is_told_stuck:
            run.kill()
        else:
            run.interrupt()
        return True

    # ---- variables

    def pull(self, name: str, ranks: int | Iterable[int] | None = None) -> Any:
        """Return a variable's value on the ranks, also while they run a cell.

        Parameters
        ----------
        name
            A variable's name, and attributes and indices below it: ``model.fc.weight``.
        ranks
            One rank: its value is returned. Several, or all by default: a list in rank order.

        Returns
        -------
        Any
            Tensors come as NumPy arrays, those of a dtype that NumPy lacks as float32.

        Raises
        ------
        UsageError
            A rank has no such variable, or its value cannot travel.
        StateError
            A rank has died or did not answer.
        """
        (values,) = self.pull_all({name: parse_path(name)}, ranks).values()
        return values

    def pull_all(
        self,
        paths: Mapping[str, VariablePath],
        ranks: int | Iterable[int] | None = None,
        tell: Callable[[str], None] = print,
    ) -> dict[str, Any]:
        """Return several variables' values, by the names given to them; see `pull`.

        Parameters
        ----------
        tell
            Is given a line if memory cannot be shared, and messages take longer.
        """
        values = self._transfer(ranks, tell).pull(paths)
        return {n: one[0] for n, one in values.items()} if isinstance(ranks, int) else values

    def push(
        self,
        variables: Mapping[str, Any],
        ranks: int | Iterable[int] | None = None,
        tell: Callable[[str], None] = print,
    ) -> None:
        """Set variables on the ranks (all by default) to what they are here, also during a cell.

        Each rank has its own: memory is shared only until one side writes to it.

        Raises
        ------
        UsageError
            A value cannot travel, or cannot be made on a rank; nothing was set on any.
        StateError
            A rank has died or did not answer.
        """
        self._transfer(ranks, tell).push(variables)

    def ask_one(self, target: str, payload: dict[str, Any], patience_s: float) -> Any:
        """Call a function on the lowest rank that lives, also while a cell runs there.

        Returns
        -------
        Any
            What it returned; None if there is no rank, it does not answer in time, or it raised.
        """
        world = self._world
        alive = [r for r in world.engines if r not in world.dead] if world is not None else []
        if world is None or not alive or self._losses.lost or os.getpid() != self._process:
            return None
        told = world.ask(target, payload, alive[:1], patience_s)[alive[0]]
        return None if isinstance(told, DdpMagicError) else told

    def _transfer(self, ranks: int | Iterable[int] | None, tell: Callable[[str], None]) -> Transfer:
        return Transfer(self._ranks(), (ranks,) if isinstance(ranks, int) else ranks, tell)

    def vars(self, pattern: str = "", ranks: Iterable[int] | None = None) -> Variables:
        """Return what variables the ranks have, those that differ first; also as a cell runs.

        Parameters
        ----------
        pattern
            Names as of files: ``"loss*"``. By default all but functions, classes, modules and what
            begins with ``_``.
        ranks
            By default all; one that does not answer is told of in the table.

        Raises
        ------
        UsageError
            No rank has a variable of that name.
        """
        return inspection.variables(self._ranks(), pattern, ranks)

    def diff(self, name: str, ranks: Iterable[int] | None = None) -> Difference:
        """Compare a variable on the ranks, bit by bit; also as a cell runs.

        Parameters
        ----------
        name
            ``"model"``, ``"model.layers[0].weight"``: numbers, tensors, models, optimizers, and
            whatever holds such.
        ranks
            By default all.

        Returns
        -------
        Difference
            True if it is the same on all of them.

        Raises
        ------
        UsageError
            No rank has it, or to look it up would run code of the user's.
        """
        world = self._ranks()
        is_running = self._run is not None and bool(self._run.busy)
        return inspection.difference(world, name, ranks, is_running=is_running)

    def __getitem__(self, rank: int) -> RankView:
        """Return one rank's view: ``session[2]["loss"]``, ``session[2].vars()``.

        Raises
        ------
        UsageError
            There is no such rank.
        """
        if not isinstance(rank, int):
            raise UsageError(f"session[{rank!r}]: give a rank, then a name: session[0][{rank!r}]")
        check_ranks((rank,), self._ranks().size, option="session")
        return RankView(rank, self.pull, self.vars)

    def __iter__(self) -> Iterator[RankView]:
        """Yield each rank's view."""
        return map(self.__getitem__, range(self.world_size))

    def __enter__(self) -> Session:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Session: {self.status().headline}>"

    # ---- following a cell

    def _follow(
        self, run: CellRun, timeout_s: float | None, start: Callable[[], None] = lambda: None
    ) -> None:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        in_time, by_hand = False, False
        try:
            start()
            in_time = run.pump(until_s)
            if not in_time:
                self._end_in_time(run)
                run.pump(time.monotonic() + _TIMEOUT_GRACE_S)
        except KeyboardInterrupt:
            by_hand = True
            if self._last_run is not run:  # it was not sent
                raise
            self._stop_run(run)
        except BaseException:
            if self._last_run is run:  # and not another one, for which this was refused
                self.interrupt()
                run.pump(time.monotonic() + _TIMEOUT_GRACE_S)
            raise
        finally:
            if self._last_run is run:
                self._cluster.flush()
                run.finish()
                self._note_end(run)
        if not in_time and timeout_s is not None and not by_hand:
            raise CellTimeout(run.story(), timeout_s)
        if run.stopped:
            raise CellInterrupted(run.story(), fix=run.way_back) from None
        run.raise_failures()

    def _end_in_time(self, run: CellRun) -> None:
        """Stop a cell whose time is over; what does not end then is not killed unasked."""
        if not run.is_told_stuck:
            self.interrupt()

    def _stop_run(self, run: CellRun) -> None:
        """Interrupt the ranks that are busy, and wait until they have ended.

        Some code cannot be interrupted; when that has been said, Stop kills its ranks.
        """
        while run.busy:
            try:
                self.interrupt()
                run.pump(time.monotonic() + _KILL_GRACE_S if run.killed else None)
                return
            except KeyboardInterrupt:
                continue

    def _note_end(self, run: CellRun) -> None:
        if run.looks_into is None:
            self._last_errors.update(run.errors())
            self._failed = run.failure(self._cell_count) or self._failed
        self._apart |= run.failed
        self._group_is_broken |= run.group_is_broken
        if not run.busy and self._run is run:
            self._run = None
            self._on(Event.CELL_ENDED)

    def _await_last_run(self) -> None:
        """Wait for a cell in the background; see whether one that was stopped has ended since."""
        if self._background is not None:
            try:
                self._background.wait()
            except KeyboardInterrupt:
                raise Interrupted(
                    "this cell was stopped; the one in the background goes on"
                ) from None
            self._background = None
        run = self._run
        if run is None:
            return
        if not run.pump(time.monotonic() + _SETTLE_S):
            raise StateError(
                f"Still busy with the cell that was stopped: {named(run.busy)}.",
                fix="Wait for it, or kill it with `%ddp interrupt`: the variables of the other"
                " ranks stay.",
            )
        self._note_end(run)

    # ---- what the cluster tells, on a thread of its own

    def _events(self) -> Events:
        """Return what the cluster calls; it must not keep this session alive."""
        return Events(
            rank_ended=_weakly(self._note_rank_end),
            rank_printed=_weakly(self._note_printed),
            lost=_weakly(self._note_loss),
        )

    def _note_rank_end(self, rank: int, end: ProcessEnd) -> None:
        by_hand = self._run is not None and rank in self._run.killed
        self._losses.dead[rank] = what = "was killed, as you asked" if by_hand else end.sentence
        if self._world is None or not self._life.allows(Event.RANK_DIED):
            return
        self._on(Event.RANK_DIED)
        if self._run is not None:
            self._run.print_unsent(rank, end.unsent)
            self._run.lose(rank, what)

    def _note_printed(self, rank: int, stream: str, text: str) -> None:
        self._losses.note_printed(rank, text)
        if self._last_run is not None:
            self._last_run.print_for(rank, stream, text)

    def _note_loss(self, what: str) -> None:
        """Note that all ranks have ended, because what they need has."""
        self._losses.lost = what
        if self._world is None or not self._life.allows(Event.LOST):
            return
        self._on(Event.LOST)
        for rank in self._world.engines:
            self._losses.dead.setdefault(rank, f"was ended: {what}")
        if self._run is not None:
            self._run.lose_all(f"was ended: {what}")

    def _plan(
        self,
        options: CellOptions,
        ranks: tuple[int, ...],
        header: str,
        execution_count: int | None,
        no_input: str,
    ) -> CellPlan:
        together = options.wrap and len(ranks) == self.world_size
        resync = together and self._apart
        self._apart = not together
        return CellPlan(
            number=self._cell_count,
            execution_count=execution_count,
            ranks=ranks,
            wrap=options.wrap,
            shard=options.shard,
            batch=options.batch,
            plot=options.plot,
            header=header,
            resync=resync,
            check=options.check,
            detect_anomaly=options.detect_anomaly,
            no_input=no_input,
        )

    def _ranks(self) -> World:
        self._check_owner()
        if self._world is None:
            raise StateError("No ranks have been started.", fix="Start them with `%ddp start`.")
        if self._losses.lost:
            raise StateError(
                f"The ranks and their variables are gone: {self._losses.lost}.",
                fix="Run `%ddp restart` to start new ones.",
            )
        return self._world

    def _check_owner(self) -> None:
        if os.getpid() != self._process:
            raise StateError(
                "The ranks belong to the process that this one was forked from.",
                fix="Make a Session of its own.",
            )

    def _on(self, event: Event) -> None:
        self._check_owner()
        with self._life_lock:
            self._life.on(event)


def _stop_in(process: int, cluster: Cluster) -> None:
    """End a session that nobody holds any more, but not its copy in a process forked from here."""
    if os.getpid() == process:
        cluster.stop()


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls the method as long as its object lives."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        if (alive := reference()) is not None:
            alive(*args)

    return call
