"""What computing a value costs: whether a loop is worth another thread.

Cycles of one vector on a machine with AVX-512, rounded.
"""

from __future__ import annotations

from plait_ir_lowering import CheckedIndex, DType, IndexExpr, Load, Masked, Op, Value, post_order
from plait_scheduler import Accumulate, Statement, Store

_CYCLES = {
    "div": 10.0,
    "reciprocal": 10.0,
    "sqrt": 18.0,
    "rsqrt": 26.0,
    "exp": 14.0,
    "exp2": 14.0,
    "expm1": 20.0,
    "log": 18.0,
    "log1p": 26.0,
    "sigmoid": 18.0,
    "tanh": 26.0,
    "erf": 30.0,
    "sin": 22.0,
    "cos": 22.0,
    "tan": 26.0,
    **dict.fromkeys(("cosh", "log2", "log10"), 26.0),
    **dict.fromkeys(("atan", "atan2", "sinh"), 34.0),
    **dict.fromkeys(("acos", "asin", "atanh"), 42.0),
    **dict.fromkeys(("acosh", "asinh", "erfc"), 75.0),
    "lgamma": 320.0,
    "hypot": 34.0,
    "fmod": 26.0,
    "rem": 30.0,
    "floordiv": 50.0,
    "pow": 70.0,
}
"""Of the operations whose vectors of float32 take long."""
_DOUBLES = frozenset(
    ("exp", "exp2", "expm1", "log", "log1p", "sigmoid", "tanh", "erf", "sin", "cos", "tan")
)
"""The operations whose vectors of float64 take as much longer as these have fewer lanes."""
_OF_DOUBLE = 5
"""How many lanes of float64 take as long as a vector of float32."""
_CYCLES_A_LANE = {
    **dict.fromkeys(("div", "reciprocal", "sqrt"), 2.0),
    **dict.fromkeys(("rsqrt", "floordiv", "truncdiv", "rem", "fmod"), 8.0),
    **dict.fromkeys(("floor", "ceil", "trunc", "round", "copysign"), 0.1),
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log1p", "sigmoid"), 12.0),
    **dict.fromkeys(("sin", "cos", "tan", "tanh", "erf", "asinh", "acosh"), 20.0),
    **dict.fromkeys(("asin", "acos", "atan", "sinh", "cosh"), 5.0),
    **dict.fromkeys(("atan2", "atanh", "log2", "log10"), 9.0),
    "erfc": 15.0,
    "pow": 20.0,
    "hypot": 20.0,
    **dict.fromkeys(("philox", "box_muller_sin", "box_muller_cos"), 40.0),
    **dict.fromkeys(("approximate_log", "approximate_exp"), 12.0),
    "lgamma": 27.0,
}
"""Of operations on other types."""
_GATHERED, _CHECKED, _GUARDED = 1.5, 0.5, 4.0
_CARRIED = 4.0
"""Of an addition that waits for the one before it."""


def statement_cycles(statement: Statement, lanes: int) -> float:
    """Of a statement at a vector of points; what several statements share counts in each."""
    stores = 1.0 if isinstance(statement, Store) else 0.0
    if isinstance(statement, Accumulate):
        joined = sum(_cycles(value, lanes) for value in post_order([statement.combine]))
        stores = max(_CARRIED * lanes, joined)
    return stores + sum(_cycles(value, lanes) for value in post_order([statement.value]))


def _cycles(value: Value, lanes: int) -> float:
    match value:
        case Load(_, index, _):
            indirect = any(not isinstance(each, IndexExpr) for each in index)
            return _GATHERED * lanes if indirect else 1.0
        case CheckedIndex():
            return _CHECKED * lanes
        case Masked():
            return _GUARDED
        case Op(name, args, _):
            if name in _CYCLES and args[0].dtype is DType.f32:
                return _CYCLES[name]
            if name in _DOUBLES and args[0].dtype is DType.f64:
                return _CYCLES[name] * lanes / _OF_DOUBLE
            return max(_CYCLES_A_LANE.get(name, 0.0) * lanes, 1.0)
    return 0.0
