"""Elements at coordinates that are computed: the one way in which rules read at such."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import ZERO, Atom, IndexExpr, Quotient, Remainder, as_index
from plait_ir_lowering.ir.index_queries import atoms, substitute
from plait_ir_lowering.ir.values import CheckedIndex, IndexValue, Load, Op, Value, post_order
from plait_ir_lowering.tensors import TensorExpr, dimensions

Place: TypeAlias = "IndexExpr | Value"
"""A coordinate: an index expression, or an i64 value that the program computes."""


def integer(number: int) -> Value:
    """A constant of the type of coordinates."""
    return constant(number, DType.i64)


def as_value(place: Place) -> Value:
    """A coordinate as an i64 value."""
    if isinstance(place, Value):
        return place
    return integer(place.as_int()) if place.is_constant else IndexValue(place)


def narrow(value: float | Value) -> Value:
    """For arithmetic of coordinates of images, whose lanes are those of f32: an i32 value."""
    return cast(value, DType.i32) if isinstance(value, Value) else constant(value, DType.i32)


def checked_index(value: Value, size: IndexExpr, *, negative: bool) -> Value:
    """`value` as a checked coordinate; `negative` indices count from the end, or fail."""
    index = cast(value, DType.i64)
    if not negative:
        below = Op("lt", [index, integer(0)])
        index = Op("where", [below, IndexValue(size), index])  # out of range: the check fails
    return CheckedIndex(index, size)


def chooses_of_nothing(shape: Sequence[IndexExpr], indices: Mapping[int, TensorExpr]) -> bool:
    """Whether there are indices into a dimension without elements.

    ATen raises then whatever they are, also where another dimension leaves nothing to be read, so
    that no loop would meet them.
    """
    if any(extent is ZERO for each in indices.values() for extent in each.shape):
        return False
    return any(shape[axis] is ZERO for axis in indices)


def nothing(ctx: LoweringContext) -> TensorExpr:
    """The node's result, which has no elements."""
    dims = dimensions(ctx.result.shape)
    return ctx.pointwise(dims, constant(0, ctx.dtype_of(ctx.result)))


def readable(ctx: LoweringContext, x: TensorExpr) -> TensorExpr:
    """`x` as a load, which may be read at computed places; stored first where it is none.

    An element may be read several times, so what has to be computed is computed once. What is
    stored without dimensions has no places: a view of it with some is stored, too.
    """
    if isinstance(x.value, Load) and x.value.index and not x.value.operands:
        return x
    dims = dimensions(x.shape)
    return ctx.intermediate(dims, x.at([dim.expr for dim in dims]), "elements")


def unflattened(position: Value, sizes: Sequence[IndexExpr]) -> list[Place]:
    """The coordinates of a place that is counted row-major; i64 and within bounds."""
    found: list[Place] = []
    for size in reversed(sizes):
        if size is as_index(1):
            found.append(ZERO)
            continue
        extent = constant(size.as_int(), DType.i64)
        found.append(Op("rem", [position, extent]))
        position = Op("truncdiv", [position, extent])
    long = [axis for axis, at in enumerate(found) if isinstance(at, Value)]
    if long:  # nothing is left of what the slowest one counts
        last = found[long[-1]]
        assert isinstance(last, Op)
        found[long[-1]] = last.args[0]
    return found[::-1]


def gathered(x: TensorExpr, places: Sequence[Place]) -> Value:
    """The element of a readable tensor at `places`, one for each dimension.

    Coordinates of views follow from those of the view by integer arithmetic. Raises ValueError
    for a tensor that is no load.
    """
    if not isinstance(x.value, Load):
        raise ValueError("only what is in memory is read at computed places")
    moved: dict[Atom, Place] = dict(zip(x.dims, places, strict=True))
    coordinates = [
        coordinate if isinstance(coordinate, Value) else _moved(coordinate, moved)
        for coordinate in x.value.index
    ]
    for dim, place in zip(x.dims, places, strict=True):
        # A dimension of one element is in no coordinate; its check must be in one.
        if isinstance(place, Value) and dim.extent.is_constant and dim.extent.as_int() == 1:
            coordinates = _with_check(coordinates, place)
    return Load(x.value.buffer, coordinates, x.value.dtype)


def _with_check(coordinates: Sequence[Place], place: Value) -> list[Place]:
    if not any(isinstance(part, CheckedIndex) for part in post_order([place])):
        return list(coordinates)
    if not coordinates:
        raise ValueError("a tensor of no dimensions has no coordinates to check")
    first, *others = coordinates
    return [place if first is ZERO else Op("add", [as_value(first), place]), *others]


def _moved(expr: IndexExpr, places: Mapping[Atom, Place]) -> Place:
    """`expr` with its variables at other places; an expression as far as it can be one."""
    computed = {atom for atom, place in places.items() if isinstance(place, Value)}
    plain = {atom: place for atom, place in places.items() if isinstance(place, IndexExpr)}
    if not computed & atoms(expr):
        return substitute(expr, plain)
    rest: IndexExpr = ZERO
    total: Value | None = None
    for monomial, factor in expr.terms:
        inside = any(computed & _atoms_in(atom) for atom in monomial)
        if not inside:
            rest = rest + substitute(IndexExpr.of({monomial: factor}), plain)
            continue
        product: Value | None = None if factor == 1 else integer(factor)
        for atom in monomial:
            part = as_value(_moved_atom(atom, places))
            product = part if product is None else Op("mul", [product, part])
        assert product is not None, "a product without factors has no variable inside"
        total = product if total is None else Op("add", [total, product])
    assert total is not None, "some term has the variable"
    return total if rest is ZERO else Op("add", [total, IndexValue(rest)])


def _atoms_in(atom: Atom) -> frozenset[Atom]:
    return atoms(IndexExpr.of({(atom,): 1}))


def _moved_atom(atom: Atom, places: Mapping[Atom, Place]) -> Place:
    if atom in places:
        return places[atom]
    match atom:
        case Quotient(numerator, denominator):
            name = "floordiv"
        case Remainder(numerator, denominator):
            name = "rem"
        case _:
            return IndexExpr.of({(atom,): 1})
    top, bottom = _moved(numerator, places), _moved(denominator, places)
    if isinstance(top, IndexExpr) and isinstance(bottom, IndexExpr):
        return top // bottom if name == "floordiv" else top % bottom
    return Op(name, [as_value(top), as_value(bottom)])
