"""Tab and Shift-Tab in ``%%ddp`` cells are answered by a rank, for the variables are there.

IPython's own means where there is one (a matcher of its completer's); ipykernel has none for
explaining a name, so the kernel's method gets another around it. Both are taken away again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from IPython.core.completer import SimpleCompletion, context_matcher

from ddp_magic.core.suggestions import body_at, suggest

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext, SimpleMatcherResult
    from IPython.core.interactiveshell import InteractiveShell

    from ddp_magic.kernel.session import Session

_PATIENCE_S = 0.3
_TARGET = "ddp_magic.rank.completion:"
_FIRST = 1000  # of all matchers
_INSPECT = "do_inspect"


class Matches(list[SimpleCompletion]):
    """Counts as found even if empty: else IPython would offer the notebook's own variables."""

    def __len__(self) -> int:
        return max(1, super().__len__())


class CellHelp:
    """Completes and explains what is typed in ``%%ddp`` cells and on ``%ddp`` lines.

    Parameters
    ----------
    find_session
        Returns the session, if there is one already.
    """

    def __init__(self, shell: InteractiveShell, find_session: Callable[[], Session | None]) -> None:
        self._shell = shell
        self._find_session = find_session
        self._kernel: Any = getattr(shell, "kernel", None)

        @context_matcher(identifier="ddp_magic", priority=_FIRST)
        def matcher(context: CompletionContext) -> SimpleMatcherResult:
            return self._match(context)

        def inspect(
            code: str, cursor: int, detail_level: int = 0, omit_sections: Iterable[str] = ()
        ) -> Any:
            return self._inspect(code, cursor, detail_level, omit_sections)

        self._matcher, self._inspector = matcher, inspect

    def install(self) -> None:
        """Begin to."""
        self._shell.Completer.custom_matchers.append(self._matcher)
        if self._kernel is not None:
            self._inspect_here = self._kernel.do_inspect
            setattr(self._kernel, _INSPECT, self._inspector)

    def uninstall(self) -> None:
        """Leave IPython as it was."""
        matchers = self._shell.Completer.custom_matchers
        if self._matcher in matchers:
            matchers.remove(self._matcher)
        if self._kernel is not None and vars(self._kernel).get(_INSPECT) is self._inspector:
            delattr(self._kernel, _INSPECT)

    def _match(self, context: CompletionContext) -> SimpleMatcherResult:
        lines = context.full_text.split("\n")
        above = sum(len(line) + 1 for line in lines[: context.cursor_line])
        cursor = above + context.cursor_position
        told = suggest(context.full_text[above:cursor])
        if told is not None and told.of_ranks:
            return _result(self._ask("complete", told.fragment, len(told.fragment)))
        if told is not None:
            matches = [(word, "magic") for word in told.words]
            return _result({"fragment": told.fragment, "matches": matches})
        body = body_at(context.full_text, cursor)
        return _result(self._ask("complete", *body) if body is not None else None)

    def _inspect(
        self, code: str, cursor: int, detail_level: int, omit_sections: Iterable[str]
    ) -> Any:
        body = body_at(code, cursor)
        how: dict[str, Any] = {"detail_level": detail_level, "omit_sections": list(omit_sections)}
        told = self._ask("inspect", *body, **how) if body is not None else None
        if told is None:
            return self._inspect_here(code, cursor, detail_level, omit_sections)
        return {"status": "ok", "found": True, "data": told, "metadata": {}}

    def _ask(self, function: str, code: str, cursor: int, **how: Any) -> Any:
        """Ask the lowest rank that lives; None if it does not answer at once."""
        session = self._find_session()
        payload = {"code": code, "cursor": cursor, **how}
        return session and session.ask_one(_TARGET + function, payload, _PATIENCE_S)


def _result(told: dict[str, Any] | None) -> SimpleMatcherResult:
    """Return what a matcher does; with nothing told, the others have their say."""
    if told is None:
        return {"completions": [], "suppress": False}
    found = Matches(SimpleCompletion(text, type=kind) for text, kind in told["matches"])
    return {"completions": found, "matched_fragment": told["fragment"], "suppress": True}
