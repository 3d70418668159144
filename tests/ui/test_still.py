"""The picture that stays in the saved notebook."""

from __future__ import annotations

import math
import re
from base64 import b64decode
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np
import pytest

from ddp_magic.ui.series import Curve
from ddp_magic.ui.still import still, svg
from ddp_magic.ui.style import number

SVG = "{http://www.w3.org/2000/svg}"


def _curve(values: Sequence[float], name: str = "loss", steps: Sequence[int] = ()) -> Curve:
    return Curve(
        name, np.array(steps or range(len(values)), dtype=float), np.array(values, dtype=float)
    )


def _texts(picture: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def _paths(picture: str) -> list[str]:
    paths = ElementTree.fromstring(picture).iter(f"{SVG}path")
    return [path.attrib["d"] for path in paths if "vector-effect" in path.attrib]


def test_bundle_is_an_image_with_its_line() -> None:
    bundle = still([_curve([2.0, 1.0])], "loss 2 → 1 <over> 2 steps")
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/plain"] == "loss 2 → 1 <over> 2 steps"
    source = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', bundle["text/html"])
    assert source
    assert ElementTree.fromstring(b64decode(source[1])).tag == f"{SVG}svg"
    assert "loss 2 → 1 &lt;over&gt; 2 steps" in bundle["text/html"]


def test_one_curve_is_named_by_its_axis() -> None:
    texts = _texts(svg([_curve([2.0, 1.0], "val_loss")]))
    assert texts.count("val_loss") == 1
    assert "step" in texts


def test_several_curves_have_a_legend() -> None:
    picture = svg([_curve([2.0, 1.0]), _curve([0.5, 0.9], "a<b")])
    assert {"loss", "a<b"} <= set(_texts(picture))
    assert len(_paths(picture)) == 2
    assert len(set(re.findall(r'stroke="(#\w{6})"', picture))) == 2


def test_a_legend_of_many_says_how_many_more() -> None:
    texts = _texts(svg([_curve([2.0, 1.0], f"layer {i}") for i in range(30)]))
    assert [text for text in texts if text.startswith("layer")] == [f"layer {i}" for i in range(12)]
    assert "and 18 more" in texts


def test_the_line_stays_inside_and_breaks_at_gaps() -> None:
    (path,) = _paths(svg([_curve([3.0, math.nan, 1.0, 2.0])]))
    assert path.count("M") == 2
    starts = [tuple(map(int, m)) for m in re.findall(r"M(-?\d+) (-?\d+)", path)]
    assert all(0 <= x <= 2000 and 0 <= y <= 2000 for x, y in starts)
    assert starts[0][1] < starts[1][1]  # 3.0 is above 1.0


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [0.0],
        [2.0] * 50,
        [math.nan],
        [math.nan, 1.0],
        [1e299, -1e299],
        [1e-300, 2e-300],
        [1.0, 1.0 + 1e-15],
        [5e7, 6e7],
    ],
)
def test_odd_values_are_drawn(values: list[float]) -> None:
    picture = svg([_curve(values)])
    assert "nan" not in picture
    assert "inf" not in picture
    assert 2 <= len(_texts(picture)) < 30


def test_steps_are_labelled_in_whole_numbers() -> None:
    labels = [t for t in _texts(svg([_curve([1.0, 2.0, 3.0])])) if t.isdigit()]
    assert {"0", "1", "2"} <= set(labels)
    assert "1,000,000" in _texts(svg([_curve([1.0, 2.0], steps=[0, 4_000_000])]))


def test_size_is_bounded() -> None:
    rng = np.random.default_rng(0)
    html = still([_curve(rng.normal(size=2050).tolist())], "")["text/html"]
    assert len(html) < 32_000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.3142, "2.31"),
        (0.05, "0.05"),
        (0.0512, "0.0512"),
        (1.0, "1"),
        (100.0, "100"),
        (12345.6, "12,346"),
        (0.0, "0"),
        (-0.5, "-0.5"),
        (1e-5, "1.00e-05"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text
