"""Floats that are computed of symbolic sizes, as values: `n / (n - 1)`, `1 / sqrt(n)`.

torch's environment holds them as expressions of sympy, which are computed in float64 as Python
would.
"""

from __future__ import annotations

from typing import Any

import torch

from plait_ir_lowering.errors import LoweringError
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.open_sizes import index_of
from plait_ir_lowering.ir.values import Const, IndexValue, Op, Value

_FUNCTIONS = {
    "IntTrueDiv": "div",
    "FloatTrueDiv": "div",
    "Add": "add",
    "Mul": "mul",
    "OpaqueUnaryFn_sqrt": "sqrt",
}
"""Functions of one or two operands, by the name of sympy's or torch's class."""

_MOST_OPERANDS = 2
"""Of more, sympy does not say in which order Python computed."""


def number_of(number: torch.SymFloat) -> Value | None:
    """A value of f64 for a symbolic float; None for what is not computed here."""
    return _value_of(number.node.expr)


def _value_of(expr: Any) -> Value | None:
    if expr.is_Float or expr.is_Integer:
        return Const(float(expr), DType.f64)
    name = expr.func.__name__
    if name == "ToFloat":
        return _value_of(expr.args[0])
    if expr.is_integer:
        try:
            return Op("to", [IndexValue(index_of(expr))], DType.f64)
        except LoweringError:
            return None
    if name not in _FUNCTIONS or len(expr.args) > _MOST_OPERANDS:
        return None
    operands = [_value_of(each) for each in expr.args]
    known = [each for each in operands if each is not None]
    return Op(_FUNCTIONS[name], known) if len(known) == len(operands) else None
