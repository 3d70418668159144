"""Losses are called what their user calls them."""

from __future__ import annotations

import ast

import pytest

from ddp_magic.core.lossname import LossName, of_call


def _name(source: str, *, through_library: bool = False) -> LossName:
    call = ast.parse(source, mode="eval").body
    assert isinstance(call, ast.Call)
    return of_call(call, through_library=through_library)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("loss.backward()", "loss"),
        ("l.backward(retain_graph=True)", "l"),
        ("self.loss.backward()", "loss"),
        ("outputs.loss.backward()", "loss"),
        ("losses['generator'].backward()", "generator"),
        ("losses[0].backward()", "losses[0]"),
        ("losses[key].backward()", "losses[key]"),
        ("(a + b).backward()", "a + b"),
        ("(0.5 * loss).backward()", "0.5 * loss"),
        ("(-loss).backward()", "-loss"),
        ("loss.mean().backward()", "loss"),
        ("l.sum().backward()", "l"),
        ("net(x).sum().backward()", "net(x).sum()"),
        ("F.mse_loss(net(x), y).backward()", "F.mse_loss(net(x), y)"),
        ("sum(losses.values()).backward()", "sum(losses.values())"),
        ("criterion(model(inputs.to(device)), targets.to(device)).backward()",
         "criterion(model(inputs.to(device)), tar…"),
    ],
)  # fmt: skip
def test_name(source: str, name: str) -> None:
    assert _name(source) == LossName(name)


@pytest.mark.parametrize(
    "source",
    [
        "(loss / 4).backward()",
        "(loss / accumulation_steps).backward()",
        "scaler.scale(loss).backward()",
        "self.scaler.scale(loss / 4).backward()",
    ],
)
def test_name_and_value_of_a_scaled_loss(source: str) -> None:
    assert _name(source) == LossName("loss", variable="loss")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("accelerator.backward(loss)", LossName("loss")),
        ("self.fabric.backward(self.loss_g)", LossName("loss_g")),
        ("accelerator.backward(loss / 4)", LossName("loss", variable="loss")),
        ("trainer.fit(model)", LossName("loss")),
        ("engine.backward()", LossName("loss")),
        ("step(loss, optimizer)", LossName("loss")),
    ],
)
def test_name_where_a_library_calls_backward(source: str, name: LossName) -> None:
    assert _name(source, through_library=True) == name
