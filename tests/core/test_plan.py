from __future__ import annotations

import json

import pytest

from ddp_magic.core.plan import CellPlan


def test_survives_the_wire() -> None:
    plan = CellPlan(7, 3, (0, 2), wrap=False, shard=False, batch="per-rank", plot=False)
    assert CellPlan.from_wire(json.loads(json.dumps(plan.to_wire()))) == plan


def test_a_plan_of_another_version_is_refused() -> None:
    wire = CellPlan(1, None, (0,)).to_wire()
    with pytest.raises(TypeError, match="colour"):
        CellPlan.from_wire(wire | {"colour": 1})
