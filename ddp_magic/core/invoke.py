"""The one way in which the notebook calls a function on a rank."""

from __future__ import annotations

import importlib
from typing import Any

Payload = dict[str, Any]


def invoke(target: str, payload: Payload) -> Any:
    """Call ``"package.module:function"`` with ``payload`` and return its result."""
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)(payload)
