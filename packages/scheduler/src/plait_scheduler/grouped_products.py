"""Products of matrices in groups, each by a matrix of its own: as mixtures of experts multiply.

A tensor tells where each group ends. Where rows lie group by group, a row's matrix is that of its
group, and that how many groups end at the row or before it; or columns do, by the same rule. The
last group is taken to end with the rows: of those behind its end no result is defined. Where terms
lie group by group, as in gradients of the experts' weights, each group has a result of its own: the
sum of its terms alone, of which there may be none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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
MOST_GROUPS = 256
"""A row is compared with the ends of all."""

Element = Callable[[ExternArg, Sequence[IndexExpr]], Load | None]
"""The element of a tensor at a place; None where its buffer has no such coordinates."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows in groups.

    Attributes:
        var: the group, in what is computed for a row.
        ends: the parameter that tells where each group ends.
        count: how many there are.
        row: which row it is.
    """

    var: Var
    ends: str
    count: int
    row: IndexExpr


@dataclass(frozen=True, slots=True)
class TermGroups:
    """Terms in groups, one of which is summed up.

    Attributes:
        group: which one.
        ends: the parameter that tells where each group ends.
        count: how many there are.
        term: which term it is.
    """

    group: IndexExpr
    ends: str
    count: int
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


def factors_of(
    body: ExternCall,
    ranks: Sequence[int],
    place: Sequence[IndexExpr],
    term: IndexExpr,
    count: int,
    element: Element,
) -> tuple[Value | None, Value | None]:
    """What is multiplied for an element of the result at a term; None for a factor that has no
    coordinates.

    Args:
        ranks: of both matrices; 3 where there is one for each group.
        count: how many groups there are.
    """
    left, right, ends = body.args[:3]
    if [*ranks] == [3, 3]:
        batch, row, column = place
        return element(left, [batch, row, term]), element(right, [batch, term, column])
    known = [element(ends, [as_index(n)]) for n in range(count)]
    loads = [each for each in known if each is not None and each.dtype is DType.i32]
    if len(loads) < count:
        return None, None
    if [*ranks] == [2, 2]:
        group, row, column = place
        is_in = is_in_group(loads, term, group)
        pair = element(left, [row, term]), element(right, [term, column])
        first, second = (None if each is None else _where(is_in, each) for each in pair)
        return first, second
    row, column = place
    if ranks[1] == 3:
        whole = element(left, [row, term])
        return whole, _of_group(loads, row, lambda at: element(right, [at, term, column]))
    whole = element(right, [term, column])
    return _of_group(loads, column, lambda at: element(left, [at, row, term])), whole


def _where(is_in: Value, value: Load) -> Value:
    return Masked(is_in, value, Const(0, value.dtype))


def _of_group(
    ends: Sequence[Load], place: IndexExpr, element: Callable[[IndexExpr], Load | None]
) -> Load | None:
    """The element of the matrix of a row's group, or of a column's."""
    group = Var("group", as_index(len(ends)))
    found = element(group.expr)
    if found is None or len(ends) == 1:
        return found
    axes = [n for n, at in enumerate(found.index) if at is group.expr]
    others = [at for at in found.index if isinstance(at, IndexExpr) and at is not group.expr]
    if len(axes) != 1 or any(group in atoms(at) for at in others):
        return None
    index: list[IndexExpr | Value] = [*found.index]
    index[axes[0]] = group_of(ends[:-1], place)
    return Load(found.buffer, index, found.dtype)


def group_of(ends: Sequence[Load], row: IndexExpr) -> Value:
    """The group of a row as an i64, by where groups end, all but the last."""
    return Op("to", [_ended(ends, row)], DType.i64)


def is_in_group(ends: Sequence[Load], term: IndexExpr, group: IndexExpr) -> Value:
    """Whether a term is one of a group, by where all groups end."""
    return Op("eq", [_ended(ends, term), _number(group)])


def _ended(ends: Sequence[Load], place: IndexExpr) -> Value:
    """How many groups end at a place or before it, as an i32."""
    number = _number(place)
    first, *others = (Op("to", [Op("le", [end, number])], DType.i32) for end in ends)
    count = first
    for each in others:
        count = Op("add", [count, each])
    return count


def _number(place: IndexExpr) -> Value:
    return Op("to", [IndexValue(place)], DType.i32)


def without_groups(
    value: Value, params: Mapping[str, Param], name: str
) -> tuple[Value, Groups | None]:
    """What is computed for a row as what is computed for its group, a variable of that name; with
    the groups, where a value reads something by them, of which there are one kind at most."""
    found: dict[Value, Groups] = {}
    for part in post_order([value]):
        for at in part.index if isinstance(part, Load) else ():
            groups = _groups(at, params, name) if isinstance(at, Value) else None
            if isinstance(at, Value) and groups is not None:
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
    ends, (row,), loads = found
    count = len(loads) + 1
    is_whole = params[ends].layout == Layout.of((as_index(count),))
    if not is_whole or group_of(loads, row) is not value:
        return None
    return Groups(Var(name, count), ends, count, row)


def _term_groups(mask: Value, params: Mapping[str, Param]) -> TermGroups | None:
    """The groups of which a mask takes one's terms; None where it is something else."""
    found = _ends_read(mask, params)
    if found is None or len(found[1]) > 2:
        return None
    ends, places, loads = found
    if params[ends].layout != Layout.of((as_index(len(loads)),)):
        return None
    for term in places:
        for group in places:
            if is_in_group(loads, term, group) is mask:
                return TermGroups(group, ends, len(loads), term)
    return None


def _ends_read(
    value: Value, params: Mapping[str, Param]
) -> tuple[str, list[IndexExpr], list[Load]] | None:
    """The parameter whose first elements a value reads, the places that it compares with these,
    and those elements in order."""
    parts = [*post_order([value])]
    buffers = {part.buffer for part in parts if isinstance(part, Load)}
    count = sum(isinstance(part, Load) for part in parts)
    places = [part.expr for part in parts if isinstance(part, IndexValue)]
    if len(buffers) != 1 or params[ends := buffers.pop()].dtype is not DType.i32:
        return None
    return ends, places, [Load(ends, [as_index(n)], DType.i32) for n in range(count)]
