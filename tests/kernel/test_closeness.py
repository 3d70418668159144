"""How far numbers of ranks are apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddp_magic.core.parts import Path
from ddp_magic.kernel.closeness import measure

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (([1.0, 2.0], [1.0, 2.0]), (0.0, 0.0, 0, 2)),
        (([1.0, 2.0], [1.0, 4.0], [1.0, 1.0]), (3.0, 0.75, 1, 2)),
        (([0.0, 1.0], [-0.0, 1.0]), (0.0, 0.0, 1, 2)),
        (([NAN, 1.0], [NAN, 1.0]), (0.0, 0.0, 0, 2)),
        (([NAN, 1.0], [2.0, 1.0]), (INF, INF, 1, 2)),
        (([INF, 1.0], [INF, 2.0]), (1.0, 0.5, 1, 2)),
        (([INF], [-INF]), (INF, INF, 1, 1)),
        (([2**62], [2**62 - 1]), (1.0, 2.0**-62, 1, 1)),
        (([True, False], [True, True]), (1.0, 1.0, 1, 2)),
        (([1 + 1j], [1 + 3j]), (2.0, 2 / 3, 1, 1)),
        (([-128], [127]), (255.0, 255 / 128, 1, 1)),
    ],
)
def test_distance(values: tuple[list[Any], ...], expected: tuple[float, ...]) -> None:
    dtype = np.int8 if values[0] == [-128] else None
    found = measure([{((), 0): np.array(one, dtype=dtype)} for one in values])
    assert found[()] == pytest.approx(expected)


def test_blocks_of_one_tensor_are_taken_together() -> None:
    key: Path = (".weight",)
    one = {(key, 0): np.zeros(3), (key, 7): np.zeros(2)}
    other = {(key, 0): np.ones(3), (key, 7): np.full(2, 5.0)}
    assert measure([one, other]) == {key: (5.0, 1.0, 5, 5)}


def test_what_changed_meanwhile_is_left_out() -> None:
    key = ((), 0)
    assert measure([{key: np.zeros(3)}, {key: np.zeros(4)}]) == {}
    assert measure([{key: np.zeros(3)}, {}]) == {}
