"""Which formula computes an operation of the loop IR for complex numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.ops import TypeMismatchError
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.rules import complex_exponentials as powers
from plait_ir_lowering.rules import complex_numbers as numbers
from plait_ir_lowering.rules import complex_trigonometry as trigonometry


def op(name: str, args: Sequence[Value]) -> Value:
    """An operation on numbers of any kind. Raises TypeMismatchError for one that is not defined."""
    if not any(arg.dtype.kind == "complex" for arg in args):
        return Op(name, args)
    formula = _FORMULAS.get(name)
    if formula is None:
        raise TypeMismatchError(f"{name} of complex numbers is not written with their parts")
    return formula(*args)


def fused(a: Value, b: Value, c: Value) -> Value:
    """`a * b + c`, real numbers rounded once, as in ATen's vectors where one operator has both."""
    if c.dtype in (DType.f32, DType.f64):
        return Op("fma", [a, b, c])
    return op("add", [c, op("mul", [a, b])])


_FORMULAS: dict[str, Callable[..., Value]] = {
    "add": numbers.total,
    "sub": numbers.difference,
    "neg": numbers.negative,
    "mul": numbers.product,
    "div": numbers.quotient,
    "reciprocal": numbers.reciprocal,
    "square": lambda x: numbers.product(x, x),
    "abs": numbers.magnitude,
    "sign": numbers.direction,
    "eq": numbers.equal,
    "ne": numbers.unequal,
    "exp": powers.exponential,
    "exp2": powers.exponential_of_two,
    "expm1": powers.exponential_less_one,
    "log": powers.logarithm(),
    "log2": powers.logarithm(2),
    "log10": powers.logarithm(10),
    "log1p": powers.logarithm_of_more_than_one,
    "sqrt": powers.square_root,
    "rsqrt": powers.root_below_one,
    "pow": powers.power,
    "sigmoid": powers.sigmoid,
    "sin": trigonometry.sine,
    "cos": trigonometry.cosine,
    "tan": trigonometry.tangent,
    "asin": trigonometry.inverse_sine,
    "acos": trigonometry.inverse_cosine,
    "atan": trigonometry.inverse_tangent,
    "sinh": trigonometry.hyperbolic_sine,
    "cosh": trigonometry.hyperbolic_cosine,
    "tanh": trigonometry.hyperbolic_tangent,
    "asinh": trigonometry.inverse_hyperbolic_sine,
    "acosh": trigonometry.inverse_hyperbolic_cosine,
    "atanh": trigonometry.inverse_hyperbolic_tangent,
}
"""Of the operations that loops compute with real numbers."""
