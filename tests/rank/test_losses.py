"""Losses are recorded as an unchanged loop calls backward, named as in its source."""

from __future__ import annotations

import gc
import importlib.util
import linecache
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ddp_magic.errors import UsageError
from ddp_magic.rank.attach import Attacher
from ddp_magic.rank.helpers import Helpers
from ddp_magic.rank.losses import LossRecorder
from ddp_magic.rank.telemetry import RankReport
from tests.rank.harness import run_on_ranks


@pytest.fixture
def recorder() -> Iterator[LossRecorder]:
    recorder = LossRecorder()
    recorder.install()
    recorder.recording = True
    yield recorder
    recorder.uninstall()


def _run(source: str, **names: Any) -> dict[str, Any]:
    """Execute a cell as a notebook does: its source is known to linecache."""
    source = textwrap.dedent(source)
    filename = f"<cell {len(linecache.cache)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace = {"torch": torch, "w": torch.ones((), requires_grad=True), **names}
    exec(compile(source, filename, "exec"), namespace)
    return namespace


def test_every_backward_is_a_point(recorder: LossRecorder) -> None:
    _run("""
        for i in range(3):
            loss = w * i
            loss.backward()
    """)
    assert recorder.drain() == {"loss": [(1, 0.0), (2, 1.0), (3, 2.0)]}
    assert recorder.drain() == {}


def test_names_of_several_losses(recorder: LossRecorder) -> None:
    _run("""
        class Trainer:
            def step(self, x):
                self.critic_loss = x * 2
                self.critic_loss.backward()
        def closure():
            objective = w * 3
            objective.backward()
            return objective
        for i in range(2):
            d, g = w * 1, w * 10
            (d + g).backward()
            Trainer().step(w)
            closure()
            {"aux": w * 4}["aux"].backward()
    """)
    assert recorder.drain() == {
        "d + g": [(1, 11.0), (2, 11.0)],
        "critic_loss": [(1, 2.0), (2, 2.0)],
        "objective": [(1, 3.0), (2, 3.0)],
        "aux": [(1, 4.0), (2, 4.0)],
    }
    assert recorder.step == 2


def test_value_is_the_loss_before_it_was_scaled(recorder: LossRecorder) -> None:
    _run("""
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        loss = w * 8
        (loss / 4).backward(retain_graph=True)
        def step(loss, accumulate):
            scaler.scale(loss / accumulate).backward()
        step(w * 5, 2)
        scaler.scale(loss).backward()
    """)
    assert recorder.drain() == {"loss": [(1, 8.0), (2, 5.0), (3, 8.0)]}


@pytest.fixture
def library(tmp_path: Path) -> Iterator[ModuleType]:
    """An installed package that calls backward for its users."""
    path = tmp_path / "site-packages" / "fakelib.py"
    path.parent.mkdir()
    path.write_text(
        "class Engine:\n"
        "    def backward(self, tensor, **kwargs):\n"
        "        self._inner(tensor / 2)\n"
        "    def _inner(self, scaled):\n"
        "        scaled.backward()\n"
        "def fit(step):\n"
        "    for _ in range(2):\n"
        "        step().backward()\n"
    )
    spec = importlib.util.spec_from_file_location("fakelib", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("fakelib", None)


def test_library_is_looked_through(recorder: LossRecorder, library: ModuleType) -> None:
    _run(
        """
        engine = lib.Engine()
        for i in range(2):
            g_loss, d_loss = w * 2, w * 6
            engine.backward(g_loss)
            engine.backward(d_loss / 3)
        lib.fit(lambda: w * 9)
        """,
        lib=library,
    )
    assert recorder.drain() == {
        "g_loss": [(1, 1.0), (2, 1.0)],
        "d_loss": [(1, 6.0), (2, 6.0)],
        "loss": [(1, 9.0), (2, 9.0)],
    }


def test_what_is_no_loss_is_not_recorded(recorder: LossRecorder) -> None:
    _run("""
        vector = w * torch.ones(3)
        vector.backward(torch.ones(3))
        phasor = w * torch.tensor(1j)
        phasor.backward(torch.tensor(1 + 0j))
        single = (w * torch.ones(1, 1)).bfloat16()
        single.backward()
    """)
    assert recorder.drain() == {"single": [(1, 1.0)]}


def test_source_that_is_gone_still_has_a_curve(recorder: LossRecorder) -> None:
    exec("(w * 2).backward()", {"w": torch.ones((), requires_grad=True)})
    assert recorder.drain() == {"loss": [(1, 2.0)]}


def test_errors_and_arguments_reach_the_user(recorder: LossRecorder) -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(()).backward()
    x = torch.ones((), requires_grad=True)
    y = x * 2
    y.backward(retain_graph=True, inputs=[x])
    y.backward(torch.tensor(2.0))
    assert x.grad == 6


def test_begin_cell_forgets(recorder: LossRecorder) -> None:
    _run("loss = w * 1; loss.backward()")
    recorder.begin_cell()
    assert recorder.drain() == {}
    _run("loss = w * 2; loss.backward()")
    assert recorder.drain() == {"loss": [(1, 2.0)]}


def test_not_recording(recorder: LossRecorder) -> None:
    recorder.recording = False
    _run("loss = w * 1; loss.backward()")
    recorder.log({"accuracy": 0.5})
    assert recorder.drain() == {}


def test_uninstall_leaves_the_class_as_it_was() -> None:
    before = dict(vars(torch.Tensor))
    recorder = LossRecorder()
    recorder.install()
    assert torch.Tensor.backward is not before["backward"]
    assert torch.Tensor.backward.__doc__ == before["backward"].__doc__
    recorder.uninstall()
    assert dict(vars(torch.Tensor)) == before


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0), (0.5, 0.5), (True, 1.0), (Fraction(1, 4), 0.25), (float("inf"), float("inf")),
        (torch.tensor(2.5, requires_grad=True), 2.5), (torch.tensor([[3]]), 3.0),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5), (torch.tensor(True), 1.0),
        (np.float32(0.25), 0.25), (np.int64(7), 7.0), (np.array(1.5), 1.5), (np.array([2]), 2.0),
    ],
)  # fmt: skip
def test_logged_value(recorder: LossRecorder, value: Any, expected: float) -> None:
    recorder.log({"metric": value})
    assert recorder.drain() == {"metric": [(1, expected)]}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("high", "a str"), (None, "a NoneType"), ([1.0], "a list"), (1j, "a complex"),
        (torch.ones(3), "a Tensor of shape [3]"), (torch.empty(0), "a Tensor of shape [0]"),
        (torch.tensor(1j), "a Tensor of shape []"), (np.ones((2, 2)), "a ndarray of shape [2, 2]"),
        (np.complex64(1), "a complex64 of shape []"), (np.array("a"), "a ndarray of shape []"),
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused(recorder: LossRecorder, value: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        recorder.log({"fine": 1, "accuracy": value})
    assert f"accuracy is {said}, not a number" in str(caught.value)
    assert recorder.drain() == {}


@pytest.mark.parametrize("step", [1.5, "1", None])
def test_step(recorder: LossRecorder, step: Any) -> None:
    if step is None:
        recorder.log({"a": 1}, step=torch.tensor(40))  # type: ignore[arg-type]
        assert recorder.drain() == {"a": [(40, 1.0)]}
    else:
        with pytest.raises(UsageError, match="is not a whole number"):
            recorder.log({"a": 1}, step=step)


@pytest.mark.parametrize(
    ("unnamed", "fix"),
    [({"loss": 0.5}, r"log\(\*\*values\)")]
    + [(one, r"log\(loss=0\.5\)") for one in (0.5, 3, torch.tensor(0.5), None)],
)
def test_values_without_a_name_are_refused(unnamed: Any, fix: str) -> None:
    """It is what other packages' ``log`` takes; here it would be the step."""
    helpers = Helpers(LossRecorder(), Attacher(RankReport(print, "")), torch.device("cpu"))
    with pytest.raises(UsageError, match=fix):
        helpers.log(unnamed)


def test_name_that_is_no_text_is_refused(recorder: LossRecorder) -> None:
    with pytest.raises(UsageError, match="the name 3"):
        recorder.log({3: 1.0})  # type: ignore[dict-item]


def test_logged_points_go_by_the_training_step(recorder: LossRecorder) -> None:
    recorder.log({"start": 1})
    recorder.log({"start": 2})
    _run(
        """
        for i in range(4):
            loss = w * i
            loss.backward()
            if i % 2: log({"accuracy": i})
        log({"start": 3})
        """,
        log=recorder.log,
    )
    drained = recorder.drain()
    assert drained["accuracy"] == [(2, 1.0), (4, 3.0)]
    assert drained["start"] == [(1, 1.0), (2, 2.0), (4, 3.0)]


def test_a_logged_loss_takes_the_place_of_the_captured_one(recorder: LossRecorder) -> None:
    _run(
        """
        for i in range(1, 4):
            loss = w * i
            loss.backward()
            log({"loss": loss / 10})
        """,
        log=recorder.log,
    )
    points = recorder.drain()["loss"]
    assert [step for step, _ in points] == [1, 1, 2, 3]
    assert [value for _, value in points[2:]] == pytest.approx([0.2, 0.3])


def test_memory_is_flat_without_a_drain(recorder: LossRecorder) -> None:
    _run("""
        loss = w * 1
        for i in range(20_000):
            loss.backward(retain_graph=True)
    """)
    steps = [step for step, _ in recorder.drain()["loss"]]
    assert steps[0] == 1
    assert steps[-1] == 20_000
    assert 1000 <= len(steps) <= 2050


def test_loss_and_its_graph_are_not_kept(recorder: LossRecorder) -> None:
    names = _run("loss = w * 1; loss.backward()")
    loss = weakref.ref(names.pop("loss"))
    gc.collect()
    assert loss() is None


def test_drained_by_another_thread_while_training(recorder: LossRecorder) -> None:
    drained: list[tuple[int, float]] = []
    ended = threading.Event()

    def drain() -> None:
        while not ended.is_set():
            drained.extend(recorder.drain().get("loss", []))

    thread = threading.Thread(target=drain)
    thread.start()
    _run("""
        for i in range(5000):
            loss = w * i
            loss.backward()
    """)
    ended.set()
    thread.join()
    drained.extend(recorder.drain().get("loss", []))
    assert len(drained) > 2000
    assert all(value == step - 1 for step, value in drained)
    assert [step for step, _ in drained] == sorted({step for step, _ in drained})
    assert drained[-1][0] == 5000


def test_values_on_another_device_are_copied_when_drained(
    recorder: LossRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors are kept as they are, and all those of a kind are read in one go."""
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda _: False))
    monkeypatch.setattr(torch.Tensor, "item", lambda _: pytest.fail("read while training"))
    recorder.log({"accuracy": torch.tensor([0.5])})
    _run("""
        for i in range(3):
            loss = w * i
            loss.backward()
        double = w.double() * 2
        double.backward()
    """)
    assert recorder.drain() == {
        "loss": [(1, 0.0), (2, 1.0), (3, 2.0)],
        "double": [(1, 2.0)],
        "accuracy": [(1, 0.5)],
    }


def test_on_ranks() -> None:
    cell = """
import torch
w = torch.ones((), requires_grad=True)
for i in range(3):
    loss = w * (i + rank)
    loss.backward()
"""
    first, second = run_on_ranks(2, cell, wrap=False)
    assert first["_losses"] == {"loss": [(1, 0.0), (2, 1.0), (3, 2.0)]}
    assert second["_losses"] == {"loss": [(1, 1.0), (2, 2.0), (3, 3.0)]}
