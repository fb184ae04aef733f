"""Products of matrices in groups, each by a matrix of its own: as mixtures of experts multiply.

A tensor tells where each group ends. Where rows lie group by group, a row's matrix is that of its
group, and that how many groups end at the row or before it, which a search by halves finds; or
columns do, by the same rule. The last group is taken to end with the rows: of those behind its end
no result is defined. Where terms lie group by group, as in gradients of the experts' weights, each
group has a result of its own: the sum of its terms alone, from the end of the group before it to
its own, of which there may be none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from plait_ir_lowering import (
    Const,
    DType,
    ExternArg,
    ExternCall,
    IndexExpr,
    IndexValue,
    Layout,
    Load,
    Masked,
    Op,
    Value,
    Var,
    as_index,
    atoms,
    post_order,
    rewrite,
)
from plait_scheduler.program import Param
from plait_utils import dataclass

GROUPED = "aten::_grouped_mm"
MOST_GROUPS = 1024
"""Back ends look at the ends of all at once."""

Element = Callable[[ExternArg, Sequence[IndexExpr]], Load | None]
"""The element of a tensor at a place; None where its buffer has no such coordinates."""


@dataclass(frozen=True, slots=True)
class Ends:
    """What tells where groups end: elements of an i32 vector without holes.

    Attributes:
        buffer: the vector, or the parameter that it is.
        first: the element of the first group.
        count: how many groups there are.
    """

    buffer: str
    first: int
    count: int

    def end(self, group: IndexExpr) -> Load:
        """Where a group ends."""
        return Load(self.buffer, [group + self.first], DType.i32)

    def is_of(self, load: Load) -> bool:
        """Whether an end is loaded, as each step of a search for a group does."""
        return load.buffer == self.buffer


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows in groups.

    Attributes:
        var: the group, in what is computed for a row.
        ends: where each ends.
        row: which row it is.
    """

    var: Var
    ends: Ends
    row: IndexExpr


@dataclass(frozen=True, slots=True)
class TermGroups:
    """Terms in groups, one of which is summed up.

    Attributes:
        group: which one.
        ends: where each ends.
        term: which term it is.
    """

    group: IndexExpr
    ends: Ends
    term: IndexExpr


def obstacle_of(body: ExternCall, ends: Layout | None) -> str | None:
    """Why a call is no loops over groups; None where it is.

    Args:
        ends: of the tensor that tells where groups end, where there is one.
    """
    if body.args[3] is not None:
        return "a bias is added to its groups"
    if ends is None:
        return None
    (count,) = ends.size
    if not count.is_constant or not 0 < count.as_int() <= MOST_GROUPS:
        return "it has too many groups, or none"
    return None


def ends_of(ends: ExternArg, count: int, layout: Layout, element: Element) -> Ends | None:
    """Where groups end; None where that does not lie as `Ends` want it.

    Args:
        layout: of the buffer in which the tensor lies.
    """
    group = Var("group", as_index(max(count, 2)))
    found = element(ends, [group.expr])
    if found is None or found.dtype is not DType.i32 or not _is_vector(layout):
        return None
    (at,) = found.index
    first = at - group.expr if isinstance(at, IndexExpr) else group.expr
    return Ends(found.buffer, first.as_int(), count) if first.is_constant else None


def factors_of(
    body: ExternCall,
    ranks: Sequence[int],
    place: Sequence[IndexExpr],
    term: IndexExpr,
    ends: Ends | None,
    element: Element,
) -> tuple[Value | None, Value | None]:
    """What is multiplied for an element of the result at a term; None for a factor that has no
    coordinates.

    Args:
        ranks: of both matrices; 3 where there is one for each group.
        ends: where groups end; None where both matrices have one for each, or ends lie otherwise.
    """
    left, right = body.args[:2]
    if [*ranks] == [3, 3]:
        batch, row, column = place
        return element(left, [batch, row, term]), element(right, [batch, term, column])
    if ends is None:
        return None, None
    if [*ranks] == [2, 2]:
        group, row, column = place
        is_in = is_in_group(ends, term, group)
        pair = element(left, [row, term]), element(right, [term, column])
        first, second = (None if each is None else _where(is_in, each) for each in pair)
        return first, second
    row, column = place
    if ranks[1] == 3:
        whole = element(left, [row, term])
        return whole, _of_group(ends, row, lambda at: element(right, [at, term, column]))
    whole = element(right, [term, column])
    return _of_group(ends, column, lambda at: element(left, [at, row, term])), whole


def _where(is_in: Value, value: Load) -> Value:
    return Masked(is_in, value, Const(0, value.dtype))


def _of_group(
    ends: Ends, place: IndexExpr, element: Callable[[IndexExpr], Load | None]
) -> Load | None:
    """The element of the matrix of a row's group, or of a column's."""
    group = Var("group", as_index(ends.count))
    found = element(group.expr)
    if found is None or ends.count == 1:
        return found
    axes = [n for n, at in enumerate(found.index) if at is group.expr]
    others = [at for at in found.index if isinstance(at, IndexExpr) and at is not group.expr]
    if len(axes) != 1 or any(group in atoms(at) for at in others):
        return None
    index: list[IndexExpr | Value] = [*found.index]
    index[axes[0]] = group_of(ends, place)
    return Load(found.buffer, index, found.dtype)


def group_of(ends: Ends, row: IndexExpr) -> Value:
    """The group of a row as an i64, of two groups or more: how many but the last end at the row or
    before it. Each step leaves the half of the groups that it is in, of which it is the first so
    far."""
    left, found = ends.count, None
    while left > 1:
        half = left // 2
        before = ends.first + half - 1  # the last of the first half
        if found is None:
            end = Load(ends.buffer, [as_index(before)], DType.i32)
        else:
            at = Op("add", [found, _i64(before)]) if before else found
            end = Load(ends.buffer, [at], DType.i32)
        is_behind = Op("le", [end, _number(row)])
        step = Op("where", [is_behind, _i64(half), _i64(0)])
        found = step if found is None else Op("add", [found, step])
        left -= half
    assert found is not None, "one group has no search"
    return found


def is_in_group(ends: Ends, term: IndexExpr, group: IndexExpr) -> Value:
    """Whether a term is one of a group: behind the end of the one before it, and before its own."""
    number = _number(term)
    is_before = Op("lt", [number, ends.end(group)])
    if group is as_index(0):
        return is_before
    has_others = Op("lt", [_i64(0), IndexValue(group)])
    start = Masked(has_others, ends.end(group - 1), Const(0, DType.i32))
    return Op("logical_and", [Op("le", [start, number]), is_before])


def _i64(number: int) -> Const:
    return Const(number, DType.i64)


def _number(place: IndexExpr) -> Value:
    return Op("to", [IndexValue(place)], DType.i32)


def without_groups(
    value: Value, params: Mapping[str, Param], name: str
) -> tuple[Value, Groups | None]:
    """What is computed for a row as what is computed for its group, a variable of that name; with
    the groups, where a value reads something by them, of which there are one kind at most."""
    found: dict[Value, Groups] = {}
    for part in post_order([value]):
        if not isinstance(part, Load):
            continue
        for at in part.index:
            groups = _groups(at, params, name) if isinstance(at, Value) else None
            if isinstance(at, Value) and groups is not None and not groups.ends.is_of(part):
                found[at] = groups
    if len(found) != 1:
        return value, None
    ((place, groups),) = found.items()

    def leaf(part: Value) -> Value | None:
        if isinstance(part, Load) and place in part.index:
            index = [groups.var.expr if at is place else at for at in part.index]
            return Load(part.buffer, index, part.dtype)
        return None

    return rewrite(value, leaf, lambda expr: expr), groups


def without_term_groups(
    value: Value, params: Mapping[str, Param]
) -> tuple[Value, TermGroups | None]:
    """A product of two factors, both 0 but at the terms of a group, as one of all terms, with the
    groups."""
    if not (isinstance(value, Op) and value.name == "mul"):
        return value, None
    masks = {_mask_of(factor) for factor in value.args}
    mask = masks.pop()
    groups = None if masks or mask is None else _term_groups(mask, params)
    if groups is None:
        return value, None

    def leaf(part: Value) -> Value | None:
        return part.value if isinstance(part, Masked) and part.mask is mask else None

    return Op("mul", [rewrite(each, leaf, lambda expr: expr) for each in value.args]), groups


def _mask_of(factor: Value) -> Value | None:
    """Where a factor is not 0, if it is by a mask."""
    while isinstance(factor, Op) and factor.name == "to":
        (factor,) = factor.args
    if isinstance(factor, Masked) and isinstance(factor.other, Const) and factor.other.value == 0:
        return factor.mask
    return None


def _groups(value: Value, params: Mapping[str, Param], name: str) -> Groups | None:
    """The groups that a coordinate is one of; None where it is something else."""
    found = _ends_read(value, params)
    if found is None or len(found[1]) != 1:
        return None
    buffer, (row,), loads = found
    known = [at.as_int() for at in _constant_places(loads)]
    count = 1 + sum(map(_step, post_order([value])))
    if len(known) != 1 or count < 2:
        return None
    ends = Ends(buffer, known[0] + 1 - count // 2, count)
    if group_of(ends, row) is not value:
        return None
    return Groups(Var(name, as_index(count)), ends, row)


def _constant_places(loads: Sequence[Load]) -> Iterator[IndexExpr]:
    for load in loads:
        (at,) = load.index
        if isinstance(at, IndexExpr) and at.is_constant:
            yield at


def _step(part: Value) -> int:
    """How many groups a step of a search leaves behind; 0 for what is no step."""
    match part:
        case Op("where", (_, Const(int(groups)), _)):
            return groups
    return 0


def _term_groups(mask: Value, params: Mapping[str, Param]) -> TermGroups | None:
    """The groups of which a mask takes one's terms; None where it is something else."""
    found = _ends_read(mask, params)
    if found is None:
        return None
    buffer, places, loads = found
    for group in (*places, as_index(0)):
        for load in loads:
            (at,) = load.index
            first = at - group if isinstance(at, IndexExpr) else group
            for term in places if first.is_constant else ():
                ends = Ends(buffer, first.as_int(), _count(group))
                if is_in_group(ends, term, group) is mask:
                    return TermGroups(group, ends, term)
    return None


def _count(group: IndexExpr) -> int:
    """How many values a group has: 1 for what is no variable of a known extent."""
    extents = [each.extent for each in atoms(group) if isinstance(each, Var)]
    return extents[0].as_int() if len(extents) == 1 and extents[0].is_constant else 1


def _ends_read(
    value: Value, params: Mapping[str, Param]
) -> tuple[str, list[IndexExpr], list[Load]] | None:
    """The parameter that a value reads, a vector of i32, the places that it compares with what it
    reads there, and what it reads."""
    parts = [*post_order([value])]
    loads = [part for part in parts if isinstance(part, Load)]
    buffers = {load.buffer for load in loads}
    places = [*dict.fromkeys(part.expr for part in parts if isinstance(part, IndexValue))]
    if len(buffers) != 1:
        return None
    param = params[buffers.pop()]
    if param.dtype is not DType.i32 or not _is_vector(param.layout):
        return None
    return param.name, places, loads


def _is_vector(layout: Layout) -> bool:
    """Whether elements lie one behind the other along one axis."""
    return len(layout.size) == 1 and layout == Layout.of(layout.size)
