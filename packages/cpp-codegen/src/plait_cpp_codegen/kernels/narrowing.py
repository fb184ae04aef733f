"""Which 64-bit integers are computed in 32 bits: positions and coordinates that certainly fit.

Coordinates are i64 values in the loop IR. Twice as many of 32 bits are in a vector, machines
gather by them as they are, and they compare and convert along with float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from plait_ir_lowering import (
    CheckedIndex,
    Const,
    DType,
    IndexExpr,
    IndexValue,
    Layout,
    Op,
    Value,
    as_index,
    bounds,
    post_order,
)

_Range: TypeAlias = tuple[int, int]

_LOW, _HIGH = -(2**31), 2**31 - 1
_SMALL = {
    DType.bool_: (0, 1),
    DType.u8: (0, 255),
    DType.i8: (-128, 127),
    DType.u16: (0, 65535),
    DType.i16: (-32768, 32767),
    DType.i32: (_LOW, _HIGH),
}
"""Types whose every value is one of 32 bits."""


def _products(a: _Range, b: _Range) -> _Range:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


_COMBINED: dict[str, Callable[[_Range, _Range], _Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _products,
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}


def is_narrow(value: Value) -> bool:
    """Whether an i64 value is computed in 32 bits, and so are those it is computed from."""
    return value.dtype is DType.i64 and _range_of(value) is not None


def fits(layout: Layout) -> bool:
    """Whether offsets of all elements do."""
    return _bounded(last_offset(layout)) is not None


def last_offset(layout: Layout) -> IndexExpr:
    """The offset of the last element in memory."""
    last = as_index(0)
    for size, stride in zip(layout.size, layout.stride, strict=True):
        last = last + (size - 1) * stride
    return last


@lru_cache(1 << 13)
def _range_of(root: Value) -> _Range | None:
    """Inclusive bounds of an integer; of an i64 one, None where it needs 64 bits."""
    known: dict[Value, _Range | None] = {}
    for value in post_order([root]):
        if value.dtype is DType.i64:
            known[value] = _wide(value, known)
        elif value.dtype is DType.i32:
            known[value] = _combined(value, known) or _SMALL[DType.i32]
        else:
            known[value] = _SMALL.get(value.dtype)
    return known[root]


def _wide(value: Value, known: dict[Value, _Range | None]) -> _Range | None:
    match value:
        case IndexValue(expr):
            return _bounded(expr)
        case CheckedIndex(_, size):
            return _bounded(size - 1)
        case Op("to", (source,), _):
            return known[source] if source.dtype in _SMALL or source.dtype is DType.i64 else None
    return _combined(value, known)


def _combined(value: Value, known: dict[Value, _Range | None]) -> _Range | None:
    found: _Range | None = None
    match value:
        case Const(number, _):
            found = int(number), int(number)
        case Op("where", (_, left, right)):
            a, b = known[left], known[right]
            found = None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
        case Op(name, (left, right)) if name in _COMBINED:
            a, b = known[left], known[right]
            found = None if a is None or b is None else _COMBINED[name](a, b)
    return found if found is not None and found[0] >= _LOW and found[1] <= _HIGH else None


def _bounded(expr: IndexExpr) -> _Range | None:
    low, high = bounds(expr)
    if low is None or high is None or low < _LOW or high > _HIGH:
        return None
    return min(low, 0), max(high, 0)
