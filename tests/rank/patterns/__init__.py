"""Single-device training cells, as people write them, by theme.

A cell that is to be several says so with a line ``# %%``.
"""

from __future__ import annotations

from tests.rank.patterns.calls import CALLS
from tests.rank.patterns.common import NET, SGD_LOOP
from tests.rank.patterns.data import DATA
from tests.rank.patterns.models import MODELS
from tests.rank.patterns.optimizing import OPTIMIZING
from tests.rank.patterns.tolerances import TOLERANCES

THEMES = {"models": MODELS, "calls": CALLS, "optimizing": OPTIMIZING, "data": DATA}
PATTERNS = MODELS | CALLS | OPTIMIZING | DATA

__all__ = ["NET", "PATTERNS", "SGD_LOOP", "THEMES", "TOLERANCES"]
