"""Products of rows in groups, each by a matrix of its own: as mixtures of experts multiply.

Rows lie group by group, and a tensor tells where each group ends. As loops a row's matrix is that
of its group, and that how many groups end at the row or before it. The last group is taken to end
with the rows: of those behind its end no result is defined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait_ir_lowering import (
    DType,
    IndexExpr,
    IndexValue,
    Layout,
    Load,
    Op,
    Value,
    Var,
    as_index,
    post_order,
    rewrite,
)
from plait_scheduler.program import Param
from plait_utils import dataclass

GROUPED = "aten::_grouped_mm"
MOST_GROUPS = 256
"""A row is compared with the ends of all."""


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


def group_of(ends: Sequence[Load], row: IndexExpr) -> Value:
    """The group of a row as an i64, by where groups end, all but the last."""
    number = Op("to", [IndexValue(row)], DType.i32)
    first, *others = (Op("to", [Op("le", [end, number])], DType.i32) for end in ends)
    count = first
    for each in others:
        count = Op("add", [count, each])
    return Op("to", [count], DType.i64)


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


def _groups(value: Value, params: Mapping[str, Param], name: str) -> Groups | None:
    """The groups that a coordinate is one of; None where it is something else."""
    parts = [*post_order([value])]
    loads = [part for part in parts if isinstance(part, Load)]
    rows = [part.expr for part in parts if isinstance(part, IndexValue)]
    if not loads or len(rows) != 1:
        return None
    count, ends = len(loads) + 1, loads[0].buffer
    lie_apart = params[ends].layout != Layout.of((as_index(count),))
    if lie_apart or params[ends].dtype is not DType.i32:
        return None
    made = group_of([Load(ends, [as_index(n)], DType.i32) for n in range(count - 1)], rows[0])
    return Groups(Var(name, count), ends, count, rows[0]) if made is value else None
