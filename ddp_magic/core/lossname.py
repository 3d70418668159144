"""What a loss is called: the name that its user gave it, read from the line that uses it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Final

DEFAULT: Final = "loss"
_LONGEST: Final = 40
_REDUCTIONS: Final = ("mean", "sum")


@dataclass(frozen=True)
class LossName:
    """A loss's name, and where its value is.

    Attributes
    ----------
    name
        What to call it.
    variable
        The variable that holds the value to show, where that is not the very tensor which
        ``backward`` is called on: in ``(loss / 4).backward()`` it is ``loss``. Empty otherwise.
    """

    name: str
    variable: str = ""


def of_call(call: ast.Call, *, through_library: bool) -> LossName:
    """Name the loss of a call in the user's own code.

    Parameters
    ----------
    call
        ``loss.backward()``, or the call of a library that calls it, as ``engine.backward(loss)``.
    through_library
        Whether a library stands between this call and ``backward``.
    """
    method = call.func
    if not isinstance(method, ast.Attribute) or method.attr != "backward":
        return LossName(DEFAULT)
    if not through_library:
        return of_expression(method.value)
    return of_expression(call.args[0]) if call.args else LossName(DEFAULT)


def of_expression(expression: ast.expr) -> LossName:
    """Name the value of an expression.

    ``loss``, ``self.loss`` and ``losses["loss"]`` are ``loss``; so are ``loss.mean()``,
    ``(loss / 4)`` and ``scaler.scale(loss)``, the last two with the value of ``loss``. All else is
    named by its text.
    """
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return LossName(name)
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return LossName(name)
        case ast.BinOp(left=ast.Name(id=name), op=ast.Div()):
            return LossName(name, variable=name)
        case ast.Call(func=ast.Attribute(attr="scale"), args=[scaled]):
            inner = of_expression(scaled)
            is_variable = isinstance(scaled, ast.Name)
            return LossName(inner.name, variable=inner.name if is_variable else inner.variable)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method), args=[]):
            return LossName(name if method in _REDUCTIONS else _text(expression))
        case _:
            return LossName(_text(expression))


def _text(expression: ast.expr) -> str:
    text = ast.unparse(expression)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
