"""Loops over truth values alone, as loops over bytes: as many fit in a vector as it has bytes.

Else a truth value in a register is a mask of 32 bits, as comparisons of numbers of that width give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from plait_ir_lowering import Const, DType, IndexExpr, Load, Local, Op, Value, post_order
from plait_scheduler import Kernel, Let, Statement, Store

_ONE = Const(1, DType.u8)


def _and(a: Value, b: Value) -> Value:
    return Op("bitwise_and", [a, b])


def _or(a: Value, b: Value) -> Value:
    return Op("bitwise_or", [a, b])


def _xor(a: Value, b: Value) -> Value:
    return Op("bitwise_xor", [a, b])


def _not(a: Value) -> Value:
    return _xor(a, _ONE)


_OF_BYTES: dict[str, Callable[..., Value]] = {
    **dict.fromkeys(("logical_and", "bitwise_and", "mul", "minimum"), _and),
    **dict.fromkeys(("logical_or", "bitwise_or", "add", "maximum"), _or),
    **dict.fromkeys(("logical_xor", "bitwise_xor", "ne"), _xor),
    **dict.fromkeys(("logical_not", "bitwise_not"), _not),
    "eq": lambda a, b: _not(_xor(a, b)),
    "lt": lambda a, b: _and(_not(a), b),
    "le": lambda a, b: _or(_not(a), b),
    "gt": lambda a, b: _and(a, _not(b)),
    "ge": lambda a, b: _or(a, _not(b)),
    "where": lambda c, a, b: _or(_and(c, a), _and(_not(c), b)),
}
"""Operations on truth values, of bytes that are 0 or 1."""


def truths_as_bytes(kernel: Kernel) -> Kernel:
    """The kernel over bytes, if truth values are all that it reads, computes and writes."""
    if any(param.dtype is not DType.bool_ for param in kernel.params):
        return kernel
    statements: list[Statement] = []
    for statement in kernel.statements:
        if not isinstance(statement, Let | Store) or _combines(statement):
            return kernel
        value = _of_bytes(statement.value)
        if value is None:
            return kernel
        statements.append(replace(statement, value=value))
    params = tuple(replace(param, dtype=DType.u8) for param in kernel.params)
    return replace(kernel, params=params, statements=tuple(statements))


def _combines(statement: Let | Store) -> bool:
    """Whether a store adds to what is there, or goes to a computed place."""
    if isinstance(statement, Let):
        return False
    return statement.kind is not None or any(isinstance(at, Local) for at in statement.index)


def _of_bytes(root: Value) -> Value | None:
    made: dict[Value, Value] = {}
    for value in post_order([root]):
        found = _converted(value, made)
        if found is None:
            return None
        made[value] = found
    return made[root]


def _converted(value: Value, made: Mapping[Value, Value]) -> Value | None:
    if value.dtype is not DType.bool_:
        return None
    match value:
        case Load(buffer, index, _) if all(isinstance(at, IndexExpr) for at in index):
            # A byte of a tensor that was made by `view(torch.bool)` may be any number.
            return Op("minimum", [Load(buffer, index, DType.u8), _ONE])
        case Const(number, _):
            return Const(int(number.real), DType.u8)
        case Local(name, _):
            return Local(name, DType.u8)
        case Op(name, args, _) if name in _OF_BYTES:
            return _OF_BYTES[name](*(made[arg] for arg in args))
    return None
