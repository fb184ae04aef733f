"""Parts of a loop in which is known what conditions on positions ask.

Tensors that are padded, joined or rolled ask at each point on which side of a border it lies. The
loop is cut at these borders; what is left of most parts is a plain copy:

    for i0 < 68: masked(i0 < 2, x[2 - i0], masked(i0 > 65, x[128 - i0], x[i0 - 2]))

    for i0 < 2: x[2 - i0]        for 2 <= i0 < 66: x[i0 - 2]        for 66 <= i0: x[128 - i0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from plait_cpp_codegen.kernels.positions import position
from plait_cpp_codegen.kernels.statements import with_value
from plait_ir_lowering import (
    Atom,
    Const,
    DType,
    IndexExpr,
    Layout,
    Load,
    Masked,
    Op,
    Quotient,
    Remainder,
    Value,
    Var,
    as_index,
    atoms,
    post_order,
    rewrite,
    stride_of,
    substitute,
)
from plait_scheduler import Statement, Store
from plait_utils import dataclass

_MOST_CUTS = 8
_GROWTH = 3
"""How many times as much code the parts together may be."""

_HOLDS: dict[str, Callable[[int], bool]] = {
    "lt": lambda distance: distance < 0,
    "le": lambda distance: distance <= 0,
    "gt": lambda distance: distance > 0,
    "ge": lambda distance: distance >= 0,
    "eq": lambda distance: distance == 0,
    "ne": lambda distance: distance != 0,
}


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a loop, and what the statements are there."""

    begin: int
    end: int
    statements: tuple[Statement, ...]


def ranges(
    statements: Sequence[Statement], var: Var, layouts: Mapping[str, Layout] | None = None
) -> list[Range]:
    """The parts of the loop over `var`, in order; none where it stays in one piece.

    Where the coordinates of an access jump and its place in memory, by `layouts`, does not, they
    stay as they are: taken apart, they would not add up to that place.
    """
    known = layouts or {}
    if not var.extent.is_constant:
        return []
    extent = var.extent.constant
    cuts = sorted({cut for cut in _cuts(statements, var, known) if 0 < cut < extent})
    if not cuts or len(cuts) > _MOST_CUTS:
        return []
    found = []
    for begin, end in zip((0, *cuts), (*cuts, extent), strict=True):
        found.append(Range(begin, end, _within(statements, var, begin, end, known)))
    size = sum(_size(part.statements) for part in found)
    return found if size <= _GROWTH * _size(statements) else []


def _size(statements: Sequence[Statement]) -> int:
    return sum(1 for s in statements for _ in post_order([s.value])) + len(statements)


def _values(statements: Sequence[Statement]) -> Iterator[Value]:
    for statement in statements:
        yield from post_order([statement.value])


def _is_straight(
    buffer: str, index: Sequence[IndexExpr | Value], var: Var, layouts: Mapping[str, Layout]
) -> bool:
    """Whether an access goes through memory by steps of one length along `var`."""
    places = [at for at in index if isinstance(at, IndexExpr)]
    if buffer not in layouts or len(places) < len(index):
        return False
    return stride_of(layouts[buffer].linear(places), var) is not None


def _cuts(
    statements: Sequence[Statement], var: Var, layouts: Mapping[str, Layout]
) -> Iterator[int]:
    """Where conditions that keep loads from being performed change, and coordinates jump."""
    for value in _values(statements):
        if isinstance(value, Masked) and any(
            isinstance(part, Load) for part in post_order([value.value])
        ):
            for part in post_order([value.mask]):
                yield from _changes(part, var)
        elif isinstance(value, Load) and not _is_straight(value.buffer, value.index, var, layouts):
            for index in value.index:
                if isinstance(index, IndexExpr):
                    yield from _jumps(index, var)


def _along(expr: IndexExpr, var: Var) -> tuple[int, int] | None:
    """`expr` as a number of steps of `var` and what it starts with, where it is no more."""
    stride = stride_of(expr, var)
    if stride is None or not stride.is_constant or not stride.constant:
        return None
    start = substitute(expr, {var: as_index(0)})
    return (stride.constant, start.constant) if start.is_constant else None


def _distance(value: Value, var: Var) -> tuple[int, int] | None:
    """How far apart what is compared is, at each step."""
    if not (isinstance(value, Op) and value.name in _HOLDS):
        return None
    left, right = (position(arg) for arg in value.args)
    return None if left is None or right is None else _along(left - right, var)


def _changes(value: Value, var: Var) -> Iterator[int]:
    line = _distance(value, var)
    if line is None or not isinstance(value, Op):
        return
    stride, start = line
    holds = _HOLDS[value.name]
    zero = -start // stride
    for cut in (zero, zero + 1, zero + 2):
        if holds(stride * (cut - 1) + start) != holds(stride * cut + start):
            yield cut


def _jumps(expr: IndexExpr, var: Var) -> Iterator[int]:
    for _, line, divisor in _divided(expr, var):
        stride, start = line
        last = stride * (var.extent.constant - 1) + start
        low, high = sorted((start // divisor, last // divisor))
        if high - low > _MOST_CUTS:
            continue
        for multiple in range(low + 1, high + 1):
            if stride > 0:
                yield -((start - multiple * divisor) // stride)
            else:
                yield (start - multiple * divisor) // -stride + 1


def _divided(expr: IndexExpr, var: Var) -> Iterator[tuple[Atom, tuple[int, int], int]]:
    """Quotients and remainders of what moves along `var`, by numbers."""
    for monomial, _ in expr.terms:
        for atom in monomial:
            if not isinstance(atom, Quotient | Remainder) or not atom.denominator.is_constant:
                continue
            line = _along(atom.numerator, var) if var in atoms(atom.numerator) else None
            if line is not None:
                yield atom, line, atom.denominator.constant


def _within(
    statements: Sequence[Statement],
    var: Var,
    begin: int,
    end: int,
    layouts: Mapping[str, Layout],
) -> tuple[Statement, ...]:
    """The statements where `var` lies in a range."""

    def at_ends(line: tuple[int, int]) -> tuple[int, int]:
        stride, start = line
        return stride * begin + start, stride * (end - 1) + start

    def index(expr: IndexExpr) -> IndexExpr:
        known: dict[Atom, IndexExpr] = {}
        for atom, line, divisor in _divided(expr, var):
            first, last = at_ends(line)
            if first // divisor != last // divisor:
                continue
            assert isinstance(atom, Quotient | Remainder), "what is divided"
            quotient = as_index(first // divisor)
            known[atom] = (
                quotient if isinstance(atom, Quotient) else atom.numerator - quotient * divisor
            )
        return substitute(expr, known) if known else expr

    def leaf(value: Value) -> Value | None:
        line = _distance(value, var)
        if line is not None and isinstance(value, Op):
            first, last = map(_HOLDS[value.name], at_ends(line))
            same = first == last and (value.name not in ("eq", "ne") or _is_same(line, begin, end))
            return Const(first, DType.bool_) if same else None
        return folded(value)

    memo: dict[Value, Value] = {
        value: value
        for value in _values(statements)
        if isinstance(value, Load) and _is_straight(value.buffer, value.index, var, layouts)
    }

    def places(statement: Statement) -> Callable[[IndexExpr], IndexExpr]:
        if not isinstance(statement, Store):
            return index
        straight = _is_straight(statement.param, statement.index, var, layouts)
        return (lambda expr: expr) if straight else index

    return tuple(
        with_value(each, rewrite(each.value, leaf, index, memo), places(each))
        for each in statements
    )


def _is_same(line: tuple[int, int], begin: int, end: int) -> bool:
    """Whether an equality that is the same at both ends of a range is so in between."""
    stride, start = line
    middle = -start // stride
    return stride * middle + start != 0 or not begin < middle < end - 1


def folded(value: Value) -> Value | None:
    """What a value is whose conditions are known; None where none is."""
    match value:
        case Masked(Const(chosen, _), Value() as inner, Value() as other):
            return inner if chosen else other
        case Op("where", (Const(chosen, _), Value() as inner, Value() as other)):
            return inner if chosen else other
        case Op("logical_not", (Const(known, _),)):
            return Const(not known, DType.bool_)
        case Op("logical_and" | "logical_or" as name, (Const(known, _), Value() as other)):
            return _joined(name, bool(known), other)
        case Op("logical_and" | "logical_or" as name, (Value() as other, Const(known, _))):
            return _joined(name, bool(known), other)
    return None


def _joined(name: str, known: bool, other: Value) -> Value | None:
    if other.dtype is not DType.bool_:
        return None
    decides = known is (name == "logical_or")
    return Const(known, DType.bool_) if decides else other
