"""What a check has found, and all findings together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum


class Verdict(Enum):
    """How it is: as it should be, good enough to work, or in the way."""

    OK = "ok"
    DEGRADED = "degraded"
    WRONG = "wrong"


_WORST_FIRST = (Verdict.WRONG, Verdict.DEGRADED)


@dataclass(frozen=True)
class Finding:
    """What one check has found.

    Attributes
    ----------
    check
        What was looked at, in a word or two.
    text
        What is there; of a problem, what comes of it.
    fix
        What mends it, a command where there is one; ``""`` if nothing needs to be done.
    """

    check: str
    verdict: Verdict
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.check}: {self.text}" + (f" ({self.fix})" if self.fix else "")


def ok(check: str, text: str) -> Finding:
    """Return that a thing is as it should be."""
    return Finding(check, Verdict.OK, text)


def degraded(check: str, text: str, fix: str = "") -> Finding:
    """Return that something works less well, or that a part of it does not."""
    return Finding(check, Verdict.DEGRADED, text, fix)


def wrong(check: str, text: str, fix: str = "") -> Finding:
    """Return that ranks cannot start, or not as they would by themselves."""
    return Finding(check, Verdict.WRONG, text, fix)


@dataclass(frozen=True)
class Diagnosis:
    """All that was found.

    Attributes
    ----------
    findings
        In the order in which they are read.
    took_s
        How long it took.
    """

    findings: tuple[Finding, ...]
    took_s: float = 0.0

    @property
    def problems(self) -> tuple[Finding, ...]:
        """What is wrong, then what is degraded."""
        return tuple(
            finding
            for verdict in _WORST_FIRST
            for finding in self.findings
            if finding.verdict is verdict
        )

    @property
    def headline(self) -> str:
        """Return one line on all of it."""
        told = [
            f"{verdict.value}: {', '.join(names)}"
            for verdict in _WORST_FIRST
            if (names := dict.fromkeys(f.check for f in self.problems if f.verdict is verdict))
        ]
        found = "; ".join(told) or "nothing is wrong"
        checks = "1 check" if len(self.findings) == 1 else f"{len(self.findings)} checks"
        return f"ddp doctor: {found} ({checks}, {self.took_s:.1f} s)"

    def changed(self, finding: Finding) -> Diagnosis:
        """Return these with another finding of the same check."""
        findings = (finding if one.check == finding.check else one for one in self.findings)
        return replace(self, findings=tuple(findings))

    def __str__(self) -> str:
        return "\n".join([self.headline, *self._lines()])

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        first = max(len(verdict.value) for verdict in Verdict)
        second = max((len(finding.check) for finding in self.findings), default=0)
        for finding in self.findings:
            yield f"{finding.verdict.value:<{first}}  {finding.check:<{second}}  {finding.text}"
            if finding.fix:
                yield f"{'':<{first}}  {'':<{second}}  -> {finding.fix}"
