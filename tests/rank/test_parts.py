"""Values taken apart and put in words, without a line of their own code."""

from __future__ import annotations

import collections
import enum
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddp_magic.core.parts import BLOCK, Part, shown
from ddp_magic.rank.flat import FlatTensor, digests, numbers_of, sample, why_unreadable
from ddp_magic.rank.parts import Limits, Taken, tensors_of
from ddp_magic.rank.summaries import chosen, summary
from ddp_magic.rank.wording import text_of


class Hostile:
    """Whatever is called of it fails the test."""

    def __init__(self) -> None:
        vars(self)["x"] = 3

    def _refuse(self, *args: Any) -> Any:
        raise AssertionError("user code was called")

    __repr__ = __str__ = __len__ = __iter__ = __eq__ = __getattr__ = __sizeof__ = _refuse
    __hash__ = __bool__ = __getitem__ = __reduce_ex__ = _refuse

    @property
    def trap(self) -> Any:
        return self._refuse()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return object.__getattribute__(self, "_refuse")()


class HostileList(list[Any]):
    """As if it held nothing."""

    def __iter__(self) -> Any:
        raise AssertionError("user code was called")

    __repr__ = __len__ = __getitem__ = __iter__  # type: ignore[assignment]


class Refusing(Tensor):
    """Computes nothing."""

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("user code was called")


class Slotted:
    """Has no dict."""

    __slots__ = ("a", "unset")

    def __init__(self, a: int) -> None:
        self.a = a


class Colour(enum.Enum):
    """One of two."""

    RED = 1


@pytest.fixture
def _inductor_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first optimizer of a process sets this variable for good."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def _recursive() -> list[Any]:
    held: list[Any] = [1]
    held.append(held)
    return held


def _deep() -> list[Any]:
    held: list[Any] = []
    for _ in range(10_000):
        held = [held]
    return held


def _parts(value: Any, **limits: Any) -> dict[str, Part]:
    return {shown(part.path): part for part in Taken(value, Limits(**limits))}


def _content(value: Any) -> list[Any]:
    return [(p.path, p.type, p.facets, p.digest, p.unseen) for p in Taken(value, Limits())]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: 3, "3"),
        (lambda: 10**5000, "an integer of 16,610 bits"),
        (lambda: "a" * 10**6, f"'{'a' * 40}'… (1,000,000 long)"),
        (lambda: [1, [2, {"a": 3}]], "[1, [2, {'a': 3}]]"),
        (lambda: (1,), "(1,)"),
        (lambda: list(range(100)), "[0, 1, 2, 3, 4, … 95 more]"),
        (_recursive, "[1, [1, [1, […]]]]"),
        (_deep, "[[[[…]]]]"),
        (Hostile, "Hostile(x=3)"),
        (lambda: {"h": Hostile()}, "{'h': Hostile(x=3)}"),
        (lambda: HostileList([1, 2]), "HostileList([1, 2])"),
        (lambda: Slotted(4), "Slotted(a=4)"),
        (lambda: Colour.RED, "Colour.RED"),
        (lambda: torch.zeros(2, 3), "Tensor(2, 3)"),
        (lambda: torch.zeros(2).as_subclass(Refusing), "Refusing(2,)"),
        (lambda: np.float32(2), "2.0"),
        (lambda: torch, "module torch"),
        (lambda: Slotted, "class Slotted"),
        (lambda: None, "None"),
    ],
)
def test_text(make: Callable[[], Any], text: str) -> None:
    assert text_of(make()) == text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1, 1.0),
        (1, True),
        ("a", b"a"),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"b": 1}),
        ({1, 2}, {1, 3}),
        (torch.zeros(3), -torch.zeros(3)),
        (torch.zeros(3), torch.zeros(3, 1)),
        (torch.zeros(3), torch.zeros(3).bfloat16()),
        (torch.zeros(3 * BLOCK), torch.zeros(3 * BLOCK).index_fill_(0, torch.tensor(BLOCK), 1)),
        (np.array(["a"]), np.array(["b"])),
        (np.array([1, None]), np.array([1, 2], dtype=object)),
        ([0.5] * 100, [*[0.5] * 99, 0.25]),
        (lambda: 3, lambda: 5),
        (lambda x=1: x, lambda x=2: x),
        (functools.partial(print, 1), functools.partial(print, 2)),
        (Slotted(1), Slotted(2)),
        (nn.Linear(2, 2).eval(), nn.Linear(2, 2)),
        (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
    ],
)
def test_what_differs_is_told_apart(one: Any, other: Any) -> None:
    assert _content(one) != _content(other)


@pytest.mark.parametrize(
    "make",
    [
        lambda: float("nan"),
        lambda: {"a", "b", "c", "d"},
        lambda: torch.arange(12.0).reshape(3, 4).t(),
        lambda: torch.full((3,), float("nan")),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
        lambda: torch.ones(3).to(torch.float8_e4m3fn),
        lambda: torch.zeros(0, 3),
        lambda: collections.OrderedDict(a=[1.5, None]),
        lambda: np.arange(20)[::-3],
        lambda: np.array(["2020-01-01"], dtype="datetime64[D]"),
        _recursive,
        Hostile,
        lambda: HostileList([1]),
        lambda: Slotted(3),
        lambda: torch.zeros(2).as_subclass(Refusing),
    ],
)
def test_what_is_the_same_is_told_so(make: Callable[[], Any]) -> None:
    assert _content(make()) == _content(make())
    assert not any(part.unseen for part in Taken(make(), Limits()))


def test_strides_are_no_difference_but_order_is() -> None:
    image = torch.randn(2, 3, 4, 5)
    last = image.to(memory_format=torch.channels_last)
    assert digests(FlatTensor(image)) == digests(FlatTensor(last))
    assert digests(FlatTensor(image.mT)) != digests(FlatTensor(image))


def test_a_model_by_its_names() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    names = _parts(model)
    assert {"0.weight", "1.running_mean", "1.training", "0.in_features"} <= names.keys()
    assert names["0.weight"].facets["requires_grad"] == "True"
    tied = nn.Sequential(model, model)
    assert [name for name, _ in tensors_of(tied)] == [f"0.{n}" for n in model.state_dict()]


@pytest.mark.usefixtures("_inductor_cache")
def test_an_optimizer_by_options_and_state() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    names = _parts(optimizer)
    assert names["param_groups[0]['lr']"].number == 0.5
    assert names["state[1]['exp_avg']"].count == 1
    assert "param_groups[0]['params'][0]" not in names


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(3, device="meta"),
        torch.eye(3).to_sparse(),
        nn.LazyLinear(2).weight,
        threading.Lock(),
        _deep(),
        iter([1]),
    ],
)
def test_what_cannot_be_looked_into_is_not_said_to_be_whole(value: Any) -> None:
    taken = Taken(value, Limits())
    parts = list(taken)
    assert not taken.is_whole
    assert any(part.unseen for part in parts)


def test_a_tensor_whose_memory_was_freed_is_not_read() -> None:
    tensor = torch.zeros(10)
    tensor.untyped_storage().resize_(0)
    assert why_unreadable(tensor) == "freed"
    assert summary(tensor).text == "freed"


def test_parts_have_an_end() -> None:
    taken = Taken([[i] for i in range(1000)], Limits(parts=100))
    assert len(list(taken)) == 100
    assert not taken.is_whole


def test_a_sample_is_the_same_each_time_and_small() -> None:
    large = torch.arange(1_000_000.0)
    for tensor in (large, large.reshape(1000, 1000).t()):
        some = sample(FlatTensor(tensor), 1000)
        assert 500 < some.size <= 1024
        assert (some == sample(FlatTensor(tensor), 1000)).all()
        assert some.max() == 999_999


def test_numbers_that_numpy_lacks_are_widened() -> None:
    for dtype in (torch.bfloat16, torch.float8_e5m2):
        flat = FlatTensor(torch.tensor([1.0, -0.5]).to(dtype))
        numbers = numbers_of(flat, flat.read(0, 2))
        assert numbers is not None
        assert numbers.tolist() == [1.0, -0.5]


@pytest.mark.usefixtures("_inductor_cache")
def test_summaries() -> None:
    spoilt = torch.ones(100)
    spoilt[3], spoilt[4] = float("nan"), float("inf")
    assert summary(spoilt).text == "mean 1, norm 9.899, 1 NaN, 1 Inf"
    assert summary(torch.tensor(2.5)).text == "2.5"
    assert summary(torch.tensor([1, 2])).text == "1, 2"
    assert summary(torch.ones(3, 5) > 0).text == "100% True"
    large = summary(torch.ones(1_000_000))
    assert large.text == "mean ≈ 1, norm ≈ 1000"
    assert not large.is_whole
    assert (large.kind, large.size_bytes) == ("Tensor (1000000,) float32", 4_000_000)
    model = nn.Linear(10, 2)
    model.bias.requires_grad_(False)
    assert summary(model.eval()).text == "22 parameters, 2 frozen, eval"
    assert summary(model).size_bytes == 88
    assert summary(torch.optim.SGD(model.parameters(), 0.1)).text == "lr 0.1"
    assert summary([1, 2]).text == "2: [1, 2]"
    assert summary(torch.zeros(2).as_subclass(Refusing)).text == "0, 0"
    assert summary(Hostile()).text == "Hostile(x=3)"


def test_which_variables_are_shown() -> None:
    held = {"loss": 1, "loss_fn": len, "torch": torch, "Net": nn.Linear, "_own": 1, "lr": 2}
    assert list(chosen(held, "")) == ["loss", "lr"]
    assert list(chosen(held, "loss*")) == ["loss", "loss_fn"]
    assert list(chosen(held, "*")) == ["loss", "loss_fn", "torch", "Net", "lr"]
    assert list(chosen(held, "_*")) == ["_own"]
