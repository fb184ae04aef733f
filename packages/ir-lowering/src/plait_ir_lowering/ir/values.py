"""Scalar value expressions: what a body computes at one point of its loops.

Values form a directed acyclic graph of interned nodes; a node used twice is one node.

    load     x[i0, i1*2 + 1]        an element, by coordinates (not by offset)
             w[t0, i2]              a coordinate may itself be an i64 value
    constant f32(0.5)               also f32("nan"), f32("-inf"), bool(True)
    index    index(i0 + 1)          an index expression as an i64 value
    op       add(t0, t1)            an operation of the table in ops.py
    cast     to(t0, f32)
    masked   masked(t0, t1, t2)     t1 where t0 holds, else t2; loads that only t1 needs
                                    are not performed where t0 does not hold
    checked  checked(t0, 30522)     the i64 index t0, counted from the end if negative;
                                    outside [-size, size) the program raises IndexError
    local    %mean                  a named value of the same kernel (scheduler only), or what a
                                    scan combines (%a0, %b0)
    pack     pack(t0, t1)           several values, what a scan carries along; never an operand
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar, TypeAlias, cast

from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import IndexExpr
from plait_ir_lowering.ir.interned import Interned
from plait_ir_lowering.ir.ops import result_dtype

Scalar: TypeAlias = bool | int | float
"""A Python number that a constant holds."""


class Value(Interned):
    """A scalar at one point of the loops."""

    __slots__ = ()
    dtype: DType

    @property
    def operands(self) -> tuple[Value, ...]:
        """The values that this one is computed from."""
        return ()


class Load(Value):
    """The element of `buffer` at coordinates `index`, one for each dimension."""

    __slots__ = ("buffer", "dtype", "index")
    __match_args__: ClassVar[tuple[str, ...]] = ("buffer", "index", "dtype")
    buffer: str
    index: tuple[IndexExpr | Value, ...]

    def __new__(cls, buffer: str, index: Sequence[IndexExpr | Value], dtype: DType) -> Load:
        return cls._intern((buffer, tuple(index), dtype))

    @property
    def operands(self) -> tuple[Value, ...]:
        return tuple(i for i in self.index if isinstance(i, Value))


class Const(Value):
    """A number; floats keep the sign of zero and NaN."""

    __slots__ = ("dtype", "value")
    __match_args__: ClassVar[tuple[str, ...]] = ("value", "dtype")
    value: Scalar

    def __new__(cls, value: Scalar, dtype: DType) -> Const:
        number: Scalar
        if dtype is DType.bool_:
            number = bool(value)
        else:
            number = float(value) if dtype.is_float else int(value)
        return cls._intern((number, dtype), key=(repr(number), dtype))


class IndexValue(Value):
    """An index expression as an i64 value."""

    __slots__ = ("dtype", "expr")
    __match_args__: ClassVar[tuple[str, ...]] = ("expr",)
    expr: IndexExpr

    def __new__(cls, expr: IndexExpr) -> IndexValue:
        return cls._intern((expr,))

    def _finish(self) -> None:
        object.__setattr__(self, "dtype", DType.i64)


class Op(Value):
    """An operation of `ops.OPS`; its dtype follows from the operands', but for casts."""

    __slots__ = ("args", "dtype", "name")
    __match_args__: ClassVar[tuple[str, ...]] = ("name", "args", "dtype")
    name: str
    args: tuple[Value, ...]

    def __new__(cls, name: str, args: Sequence[Value], dtype: DType | None = None) -> Op:
        result = result_dtype(name, [arg.dtype for arg in args], dtype)
        return cls._intern((name, tuple(args), result))

    @property
    def operands(self) -> tuple[Value, ...]:
        return self.args


class Masked(Value):
    """`value` where `mask`, else `other`; see the module's text on loads."""

    __slots__ = ("dtype", "mask", "other", "value")
    __match_args__: ClassVar[tuple[str, ...]] = ("mask", "value", "other")
    mask: Value
    value: Value
    other: Value

    def __new__(cls, mask: Value, value: Value, other: Value) -> Masked:
        result_dtype("where", [mask.dtype, value.dtype, other.dtype])
        return cls._intern((mask, value, other))

    def _finish(self) -> None:
        object.__setattr__(self, "dtype", self.value.dtype)

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.mask, self.value, self.other)


class CheckedIndex(Value):
    """An i64 index into a dimension of `size`, wrapped and checked when the program runs."""

    __slots__ = ("dtype", "size", "value")
    __match_args__: ClassVar[tuple[str, ...]] = ("value", "size")
    value: Value
    size: IndexExpr

    def __new__(cls, value: Value, size: IndexExpr) -> CheckedIndex:
        if value.dtype is not DType.i64:
            raise TypeError(f"an index is i64, not {value.dtype}; cast it first")
        return cls._intern((value, size))

    def _finish(self) -> None:
        object.__setattr__(self, "dtype", DType.i64)

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.value,)


class Local(Value):
    """A value that an earlier statement of the same kernel named."""

    __slots__ = ("dtype", "name")
    __match_args__: ClassVar[tuple[str, ...]] = ("name", "dtype")
    name: str

    def __new__(cls, name: str, dtype: DType) -> Local:
        return cls._intern((name, dtype))


class Pack(Value):
    """Several values as one, which a scan carries along together; its dtype is the first's."""

    __slots__ = ("dtype", "items")
    __match_args__: ClassVar[tuple[str, ...]] = ("items",)
    items: tuple[Value, ...]

    def __new__(cls, items: Sequence[Value]) -> Pack:
        if len(items) < 2 or any(isinstance(item, Pack) for item in items):
            raise TypeError("a pack holds two values or more, none of them a pack")
        return cls._intern((tuple(items),))

    def _finish(self) -> None:
        object.__setattr__(self, "dtype", self.items[0].dtype)

    @property
    def operands(self) -> tuple[Value, ...]:
        return self.items


def part(name: str, value: Value) -> Value:
    """The part "real" or "imag" of a complex value: what it is made of, where that is known."""
    match value:
        case Op("complex", (real, imaginary)):
            found: Value = real if name == "real" else imaginary
            return found
        case Op("where", (mask, left, right)):
            return Op("where", [mask, part(name, left), part(name, right)])
        case Masked(mask, inner, other):
            return Masked(mask, part(name, inner), part(name, other))
    return Op(name, [value])


def components(value: Value) -> tuple[Value, ...]:
    """The values of a pack; of anything else, itself alone."""
    return value.items if isinstance(value, Pack) else (value,)


def packed(values: Sequence[Value]) -> Value:
    """`values` as one: a pack, or the only one."""
    return Pack(values) if len(values) > 1 else values[0]


def carried(names: str, dtypes: Sequence[DType]) -> tuple[Local, ...]:
    """The locals of a scan's combination: "a" names the state before a point, "b" the point's."""
    return tuple(Local(f"{names}{number}", dtype) for number, dtype in enumerate(dtypes))


def post_order(roots: Sequence[Value]) -> Iterator[Value]:
    """Each value that `roots` depend on, once, operands first. Not recursive."""
    return iter(_order_of(roots[0])) if len(roots) == 1 else _ordered(roots)


@lru_cache(1 << 13)
def _order_of(root: Value) -> tuple[Value, ...]:
    """Scheduling asks the same values again and again."""
    return tuple(_ordered((root,)))


def _ordered(roots: Sequence[Value]) -> Iterator[Value]:
    seen: set[Value] = set()
    stack: list[tuple[Value, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        value, expanded = stack.pop()
        if expanded:
            yield value
        elif value not in seen:
            seen.add(value)
            stack.append((value, True))
            stack.extend((operand, False) for operand in reversed(value.operands))


def loads_of(roots: Sequence[Value]) -> list[Load]:
    """The loads that `roots` perform, in order of first use."""
    if len(roots) == 1:
        return list(_loads_in(roots[0]))
    return [value for value in post_order(roots) if isinstance(value, Load)]


@lru_cache(1 << 13)
def _loads_in(root: Value) -> tuple[Load, ...]:
    return tuple(value for value in _order_of(root) if isinstance(value, Load))


@lru_cache(1 << 13)
def buffers_in(root: Value) -> tuple[str, ...]:
    """The buffers that `root` loads from, each once, in order of first use."""
    return tuple(dict.fromkeys(load.buffer for load in _loads_in(root)))


def rewrite(
    root: Value,
    leaf: Callable[[Value], Value | None],
    index: Callable[[IndexExpr], IndexExpr | Value],
    memo: dict[Value, Value] | None = None,
) -> Value:
    """`root` rebuilt from the leaves up.

    `leaf` may replace a node, once its operands are rebuilt; it returns None to keep
    it. `index` maps every index expression, also to what is computed from data. `memo`
    may be shared between calls that use the same two functions.
    """
    done: dict[Value, Value] = {} if memo is None else memo
    for value in post_order([root]):
        if value not in done:
            rebuilt = _rebuild(value, done, index)
            done[value] = leaf(rebuilt) or rebuilt
    return done[root]


def renamed(root: Value, names: Mapping[str, str]) -> Value:
    """`root` with loads of other buffers; `names` has those of all buffers that it loads from."""
    done: dict[Value, Value] = {}
    if not root.operands:
        return _with_names(root, names, done)
    for value in post_order([root]):
        done[value] = _with_names(value, names, done)
    return done[root]


def _with_names(value: Value, names: Mapping[str, str], done: dict[Value, Value]) -> Value:
    if isinstance(value, Load):
        index = tuple(done[at] if isinstance(at, Value) else at for at in value.index)
        return Load(names[value.buffer], index, value.dtype)
    if all(done[operand] is operand for operand in value.operands):
        return value
    match value:
        case Op(name, args, dtype):  # not checked again: types stay
            return Op._intern((name, tuple(done[arg] for arg in args), dtype))
        case Masked(mask, inner, other):
            return Masked._intern((done[mask], done[inner], done[other]))
        case CheckedIndex(inner, size):
            return CheckedIndex(done[inner], size)
        case Pack(items):
            return Pack([done[item] for item in items])
    raise TypeError(f"{type(value).__name__} has operands that are not known")


def _rebuild(
    value: Value, done: dict[Value, Value], index: Callable[[IndexExpr], IndexExpr | Value]
) -> Value:
    match value:
        case Load(buffer, coordinates, dtype):
            moved = [done[c] if isinstance(c, Value) else index(c) for c in coordinates]
            return Load(buffer, moved, dtype)
        case IndexValue(expr):
            found = index(expr)
            return found if isinstance(found, Value) else IndexValue(found)
        case Op("real" | "imag" as name, (arg,)):
            return part(name, done[arg])
        case Op(name, args, dtype):
            return Op(name, [done[arg] for arg in args], dtype)
        case Masked(mask, inner, other):
            return Masked(done[mask], done[inner], done[other])
        case CheckedIndex(inner, size):
            return CheckedIndex(done[inner], cast(IndexExpr, index(size)))
        case Pack(items):
            return Pack([done[item] for item in items])
    return value
