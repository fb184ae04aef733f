"""Floats that are computed of symbolic sizes, as values: `n / (n - 1)`, `1 / sqrt(n)`.

torch's environment holds them as expressions of sympy, which are computed in float64 as Python
would.
"""

from __future__ import annotations

from typing import Any

import torch

from plait_ir_lowering.errors import LoweringError
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.open_sizes import index_in
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
    return _value_of(number.node.expr, number.node.shape_env)


def _value_of(expr: Any, environment: Any) -> Value | None:
    if expr.is_Float or expr.is_Integer:
        return Const(float(expr), DType.f64)
    name, operands = expr.func.__name__, expr.args
    if name == "ToFloat":
        return _value_of(operands[0], environment)
    if expr.is_integer:
        try:
            return Op("to", [IndexValue(index_in(expr, environment))], DType.f64)
        except LoweringError:
            return None
    if name == "Pow" and operands[1] == 2:  # as sympy has a product of one number with itself
        name, operands = "Mul", (operands[0], operands[0])
    if name not in _FUNCTIONS or len(operands) > _MOST_OPERANDS:
        return None
    found = [_value_of(each, environment) for each in operands]
    known = [each for each in found if each is not None]
    return Op(_FUNCTIONS[name], known) if len(known) == len(found) else None
