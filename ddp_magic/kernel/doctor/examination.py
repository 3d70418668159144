"""All checks, one after the other, within a bounded time; no rank is started."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from ddp_magic.core.doctor import frontend as front
from ddp_magic.core.doctor import gpus as gpu
from ddp_magic.core.doctor import machine as here
from ddp_magic.core.doctor import software as soft
from ddp_magic.core.doctor.finding import Diagnosis, Finding, Verdict
from ddp_magic.errors import StartError
from ddp_magic.kernel.doctor import gpus, machine, software
from ddp_magic.kernel.doctor.probe import Probe
from ddp_magic.kernel.forks import ForkServer

_PATIENCE_S = 2.4  # all that takes longer is said to be not known yet
_CPU_RANKS = 2
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def examine(
    facts: front.Frontend,
    server: ForkServer | None = None,
    *,
    ranks_run: bool = False,
    patience_s: float = _PATIENCE_S,
) -> Diagnosis:
    """Look at all that ranks need.

    Parameters
    ----------
    facts
        Who shows the cells.
    server
        The fork server that runs, if one does.
    ranks_run
        Whether there are ranks, which use the GPUs.
    patience_s
        How long to wait for what does not answer.
    """
    began_s = time.monotonic()
    until_s = began_s + patience_s
    findings = [*_of_machine(until_s, server, ranks_run), *_of_frontend(facts)]
    return Diagnosis(tuple(findings), time.monotonic() - began_s)


def hinted(error: StartError) -> StartError:
    """Return an error of a start; one that knows no fix tells what is wrong here, if anything is.

    Only what is known at once is looked at.
    """
    if error.fix:
        return error
    found = gpus.gpus(in_use=False)
    torch = software.torch_on_disk()
    findings = (
        *soft.check_packages(software.packages()),
        *gpu.check_gpus(found, torch, gpu.Cuda()),
        *_of_capacity(machine.capacity(found.count or _CPU_RANKS)),
        *_of_places(found),
    )
    names = [one.check for one in findings if one.verdict is Verdict.WRONG]
    if not names:
        return error
    fix = f"`%ddp doctor` says more; it finds wrong: {', '.join(names)}."
    return StartError(error.cause, fix=fix, context=error.context)


def _of_machine(until_s: float, server: ForkServer | None, ranks_run: bool) -> Iterator[Finding]:
    lookup = machine.NameLookup()  # goes on, as the import of torch does, meanwhile
    try:
        with Probe(server) as probe:
            found = gpus.gpus(ranks_run)
            ranks = found.count or _CPU_RANKS
            later = [*_of_capacity(machine.capacity(ranks)), *_of_places(found)]
            yield from _of_software(probe, found, until_s)
            yield from later
            yield here.check_host_name(lookup.result(until_s))
            yield here.check_transfer(probe.memory_error)
    finally:
        lookup.close()


def _of_software(probe: Probe, found: gpu.Gpus, until_s: float) -> Iterator[Finding]:
    packages = software.packages()
    yield soft.check_python(software.interpreter())
    yield from soft.check_packages(packages)
    answer = probe.answer(until_s)
    torch = answer.torch or software.torch_on_disk()
    if torch is not None:  # else the packages tell
        yield soft.check_torch(answer, torch)
    yield soft.check_fork_server(answer)
    usable = bool(answer.torch and answer.torch.cuda and found.count)
    cuda = probe.cuda(until_s) if usable else gpu.Cuda()
    yield from gpu.check_gpus(found, torch, cuda)
    yield gpu.check_nccl(found, torch)


def _of_capacity(facts: here.Capacity) -> Iterator[Finding]:
    yield here.check_cores(facts)
    yield here.check_memory(facts)
    yield here.check_limits(facts)


def _of_places(found: gpu.Gpus) -> Iterator[Finding]:
    yield here.check_shm(machine.room("/dev/shm"), found.count)
    yield here.check_folder(machine.temporary_room())
    yield here.check_network(machine.network(_LOOPBACK))


def _of_frontend(facts: front.Frontend) -> Iterator[Finding]:
    yield front.check_widgets(facts)
    yield front.check_input(facts)
