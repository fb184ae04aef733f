"""Weights of cubic interpolation, which upsampling and sampling at given places share."""

from __future__ import annotations

from plait_ir_lowering.context import constant
from plait_ir_lowering.ir.values import Op, Value

_SHARPNESS = -0.75
"""The free parameter of the cubic kernel (Keys, 1981), as ATen has it."""


def cubic_weights(share: Value) -> tuple[Value, Value, Value, Value]:
    """Of the elements at -1, 0, 1 and 2 from the one below, `share` of a step before the place."""
    rest = Op("sub", [_number(share, 1), share])
    return (
        _far(Op("add", [share, _number(share, 1)])),
        _near(share),
        _near(rest),
        _far(Op("add", [rest, _number(share, 1)])),
    )


def _number(like: Value, number: float) -> Value:
    return constant(number, like.dtype)


def _near(x: Value) -> Value:
    """At most one step away."""
    steep = Op("mul", [_number(x, _SHARPNESS + 2), x])
    bent = Op("mul", [Op("sub", [steep, _number(x, _SHARPNESS + 3)]), x])
    return Op("add", [Op("mul", [bent, x]), _number(x, 1)])


def _far(x: Value) -> Value:
    """Between one step and two."""
    steep = Op("sub", [Op("mul", [_number(x, _SHARPNESS), x]), _number(x, 5 * _SHARPNESS)])
    bent = Op("add", [Op("mul", [steep, x]), _number(x, 8 * _SHARPNESS)])
    return Op("sub", [Op("mul", [bent, x]), _number(x, 4 * _SHARPNESS)])
