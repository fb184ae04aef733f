"""Which operations have one right result, whatever computes them.

Nothing is rounded: operands are compared, chosen, or taken apart, integers wrap around, and
conversions keep the value. So two programs of them agree in every bit, but for what a NaN holds
beside being one. Absent are the operations on floats that round, and those of which ATen and its
vectors choose differently (the larger of 0.0 and -0.0), or that are not defined for all operands
(shifts by more than there are bits, divisions by 0, floats beyond the integers' range).
"""

from __future__ import annotations

from collections.abc import Callable

from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.values import Op

_DIGITS = {DType.bf16: 8, DType.f16: 11, DType.f32: 24, DType.f64: 53}
"""Of the significand of floats, which holds all integers of so many bits."""


def has_one_result(op: Op) -> bool:
    """Whether an operation gives the same on every machine and in every library."""
    condition = _CONDITIONS.get(op.name)
    return condition is not None and condition(op)


def _always(op: Op) -> bool:
    return True


def _of_integers(op: Op) -> bool:
    return op.dtype.is_integer


def _keeps_value(op: Op) -> bool:
    """Whether a conversion is to a type that holds all values of the other one, or wraps around."""
    source, target = op.args[0].dtype, op.dtype
    if target in (source, DType.bool_):
        return True
    if source.is_float:
        wider = target.itemsize > source.itemsize
        return wider and target in (DType.f32, DType.f64)
    if target.is_integer:
        return True
    return 8 * source.itemsize <= _DIGITS.get(target, 0)


_CONDITIONS: dict[str, Callable[[Op], bool]] = {
    **dict.fromkeys(("add", "sub", "mul", "neg", "maximum", "minimum"), _of_integers),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _always),
    **dict.fromkeys(("isnan", "isinf", "signbit"), _always),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor", "logical_not"), _always),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"), _always),
    **dict.fromkeys(("where", "real", "imag", "complex"), _always),
    "to": _keeps_value,
}
"""By the name of the operation."""
