"""64-bit integers of positions that certainly fit in 32 bits, which GPUs compute with faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from plait_ir_lowering import Const, DType, IndexValue, Op, Value, bounds, rewrite

_Range: TypeAlias = tuple[int, int]

_LOW, _HIGH = -(2**31), 2**31 - 1


def _corners(a: _Range, b: _Range) -> _Range:
    products = [x * y for x in a for y in b]
    return min(products), max(products)


_COMBINED: dict[str, Callable[[_Range, _Range], _Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _corners,
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}
_CHANGED: dict[str, Callable[[_Range], _Range]] = {
    "neg": lambda a: (-a[1], -a[0]),
    "abs": lambda a: (0, max(abs(a[0]), abs(a[1]))),
}
_COMPARED = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


def with_narrow_integers(root: Value) -> Value:
    """`root` with sums, products and comparisons of small 64-bit integers taken in 32 bits."""
    known: dict[Value, tuple[Value, _Range]] = {}

    def leaf(value: Value) -> Value | None:
        if value.dtype is DType.i64:
            found = _narrow(value, known)
            if found is not None:
                known[value] = found
            return None
        if not isinstance(value, Op) or not all(arg in known for arg in value.args):
            return None
        args = [known[arg][0] for arg in value.args]
        if value.name in _COMPARED:
            return Op(value.name, args)
        if value.name != "to":
            return None
        return args[0] if value.dtype is DType.i32 else Op("to", args, value.dtype)

    return rewrite(root, leaf, lambda expr: expr)


def _narrow(value: Value, known: dict[Value, tuple[Value, _Range]]) -> tuple[Value, _Range] | None:
    """A 64-bit integer as one of 32 bits, and what it lies between."""
    args: list[Value]
    match value:
        case IndexValue(expr):
            low, high = bounds(expr)
            if low is None or high is None:
                return None
            found, args = (low, high), [value]
        case Const(number):
            found, args = (int(number), int(number)), []
        case Op(name, (left, right)) if name in _COMBINED and left in known and right in known:
            found = _COMBINED[name](known[left][1], known[right][1])
            args = [known[left][0], known[right][0]]
        case Op(name, (arg,)) if name in _CHANGED and arg in known:
            found, args = _CHANGED[name](known[arg][1]), [known[arg][0]]
        case _:
            return None
    if found[0] < _LOW or found[1] > _HIGH:
        return None
    if isinstance(value, Op):
        return Op(value.name, args), found
    if isinstance(value, Const):
        return Const(value.value, DType.i32), found
    return Op("to", args, DType.i32), found
