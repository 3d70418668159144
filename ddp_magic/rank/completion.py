"""Completes and explains what is typed in a cell, from the variables that are here.

Asked while the main thread may be training: names are looked up without running properties, and
nothing is written into the user's namespace.
"""

from __future__ import annotations

import builtins
import collections
import re
from collections.abc import Mapping
from inspect import signature
from typing import Any

import numpy as np
import torch
from IPython.core.completer import IPCompleter, provisionalcompleter, rectify_completions
from IPython.core.oinspect import Inspector, OInfo
from IPython.utils.tokenutil import token_at_cursor

from ddp_magic.core.names import parse_path
from ddp_magic.errors import UsageError
from ddp_magic.rank.intime import TooLong, in_time
from ddp_magic.rank.lookup import Missing, find
from ddp_magic.rank.shell import this_shell

_PATIENCE_S = 0.3  # a __dir__ of the user's may take its time
_MOST_MATCHES = 500
_MOST_SHOWN = 1000  # elements of a tensor or array that is shown
_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.device, torch.dtype, torch.Size)
_CALLEE = re.compile(r"([\w.\[\]'\"]+)\s*\([^()]*$")
# IPython 8 calls it otherwise.
_STYLE = "theme_name" if "theme_name" in signature(Inspector).parameters else "scheme"
_NEVER = 2  # a detail level that is not asked for


class RankCompleter(IPCompleter):
    """IPython's completer, that looks names up as everything here does."""

    def _evaluate_expr(self, expr: str) -> Any:
        try:
            return find(parse_path(expr), _names())
        except UsageError:
            return super()._evaluate_expr(expr)  # a literal: the policy allows no more

    def _attr_matches(self, text: str, include_prefix: bool = True, context: Any = None) -> Any:
        """Leave out the lines above, which IPython evaluates with what they hold."""
        return super()._attr_matches(text, include_prefix)

    def python_func_kw_matches(self, text: str) -> list[str]:
        """Return the parameters of the function that is being called."""
        callee = _CALLEE.search(self.text_until_cursor)
        if callee is None or "." in text:
            return []
        try:
            function = find(parse_path(callee[1]), _names())
        except UsageError:
            return []
        names = self._default_arguments(function)
        return sorted(f"{name}=" for name in names if name.startswith(text))


def complete(payload: dict[str, Any]) -> dict[str, Any] | None:
    """Complete code.

    Parameters
    ----------
    payload
        ``code``, and the offset of the ``cursor`` in it.

    Returns
    -------
    dict or None
        ``fragment``: what is to be replaced, up to the cursor; ``matches``: (text, kind) of each.
        None if it takes too long.
    """
    code, cursor = payload["code"], payload["cursor"]
    try:
        found = in_time(_PATIENCE_S, lambda: _completions(code, cursor))
    except TooLong:
        return None
    start = found[0].start if found else cursor
    return {
        "fragment": code[start:cursor],
        "matches": [(one.text, one.type or "") for one in found],
    }


def inspect(payload: dict[str, Any]) -> dict[str, str] | None:
    """Explain what is at the cursor, as IPython does; None if it is not known here.

    Parameters
    ----------
    payload
        ``code``, ``cursor``, ``detail_level`` (1: with the source) and ``omit_sections``.
    """
    name = token_at_cursor(payload["code"], payload["cursor"])
    how = {"detail_level": payload["detail_level"], "omit_sections": payload["omit_sections"]}
    try:
        return in_time(_PATIENCE_S, lambda: _explained(name, how))
    except TooLong:
        return None


def _completions(code: str, cursor: int) -> list[Any]:
    shell = this_shell()
    completer = RankCompleter(
        shell=shell, namespace=shell.user_ns, evaluation="minimal", use_jedi=False
    )
    completer.custom_completers = shell.Completer.custom_completers
    with provisionalcompleter():
        found = completer.completions(code, cursor)
        return list(rectify_completions(code, found))[:_MOST_MATCHES]


def _explained(name: str, how: dict[str, Any]) -> dict[str, str] | None:
    shell = this_shell()
    info = _found(name)
    if info is None:
        return None
    inspector = Inspector(
        **{_STYLE: shell.colors},
        str_detail_level=0 if _is_short(info.obj) else _NEVER,
        parent=shell,
    )
    bundle: dict[str, str] = inspector._get_info(info.obj, name, info=info, **how)
    if not shell.enable_html_pager:
        bundle.pop("text/html", None)
    return bundle


def _found(name: str) -> OInfo | None:
    known = {"ismagic": False, "isalias": False, "found": True, "namespace": None, "parent": None}
    try:
        return OInfo(obj=find(parse_path(name), _names()), **known)  # type: ignore[arg-type]
    except Missing:
        info = this_shell()._ofind(name) if name.isidentifier() else None  # a magic's name
        return info if info is not None and info.found else None
    except UsageError:
        return None


def _is_short(value: Any) -> bool:
    """Tell whether showing a value runs no code of the user's, waits for no GPU, and is short."""
    if isinstance(value, torch.Tensor):
        return type(value) is torch.Tensor and value.is_cpu and value.numel() <= _MOST_SHOWN
    if type(value) is np.ndarray:
        return bool(value.size <= _MOST_SHOWN and not value.dtype.hasobject)
    return type(value) in _PLAIN


def _names() -> Mapping[str, Any]:
    return collections.ChainMap(dict(this_shell().user_ns), vars(builtins))
