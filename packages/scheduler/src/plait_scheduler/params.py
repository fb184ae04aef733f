"""Kernel parameters with as few dimensions as their accesses need.

A kernel over merged loops reads a buffer of shape [8, 64, 384] at [i0 // 64, i0 % 64, r0].
The same memory seen as [512, 384] is read at [i0, r0]: easier to read, and one kernel
for both shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait_ir_lowering import IndexExpr, Layout, Load, Value, as_index, post_order, rewrite
from plait_scheduler.domains import divisions, plain
from plait_scheduler.program import Kernel, Statement, Store

_Index = tuple[IndexExpr | Value, ...]
_Places = list[list[IndexExpr | Value]]
"""The coordinates of all accesses to one parameter."""


def compact_params(kernel: Kernel) -> Kernel:
    """Leave out dimensions of size 1, and merge those where that takes `//` and `%` out of
    accesses."""
    layouts: dict[str, Layout] = {}
    moved: dict[tuple[str, _Index], _Index] = {}
    for param in kernel.params:
        accesses = _accesses(kernel, param.name)
        places = [list(access) for access in accesses]
        layout = _merged(param.layout, places)
        if layout is not param.layout:
            layouts[param.name] = layout
            for access, changed in zip(accesses, places, strict=True):
                moved[param.name, access] = tuple(changed)
    if not layouts:
        return kernel

    def leaf(value: Value) -> Value | None:
        if isinstance(value, Load) and (value.buffer, value.index) in moved:
            return Load(value.buffer, moved[value.buffer, value.index], value.dtype)
        return None

    memo: dict[Value, Value] = {}
    statements: list[Statement] = []
    for statement in kernel.statements:
        value = rewrite(statement.value, leaf, lambda expr: expr, memo)
        if isinstance(statement, Store):
            key: tuple[str, _Index] = (statement.param, statement.index)
            place: _Index = moved.get(key, statement.index)
            index = plain(place) or ()
            statements.append(replace(statement, index=index, value=value))
        else:
            statements.append(replace(statement, value=value))
    params = tuple(replace(p, layout=layouts.get(p.name, p.layout)) for p in kernel.params)
    return replace(kernel, params=params, statements=tuple(statements))


def _accesses(kernel: Kernel, name: str) -> list[_Index]:
    found: dict[_Index, None] = {}
    for statement in kernel.statements:
        for value in post_order([statement.value]):
            if isinstance(value, Load) and value.buffer == name:
                found[value.index] = None
        if isinstance(statement, Store) and statement.param == name:
            found[statement.index] = None
    return list(found)


def _merged(layout: Layout, places: _Places) -> Layout:
    """Leave out and merge dimensions, changing `places` along."""
    one, zero = as_index(1), as_index(0)
    for axis in range(len(layout.size) - 1, -1, -1):
        if layout.size[axis] is one and all(place[axis] is zero for place in places):
            for place in places:
                del place[axis]
            size = (*layout.size[:axis], *layout.size[axis + 1 :])
            stride = (*layout.stride[:axis], *layout.stride[axis + 1 :])
            layout = Layout(size, stride, layout.offset)
    axis = len(layout.size) - 2
    while axis >= 0:
        size, stride = layout.size, layout.stride
        dense = stride[axis] is stride[axis + 1] * size[axis + 1]
        if dense and _helps(places, axis, size[axis + 1]):
            for place in places:
                place[axis : axis + 2] = [_joined(place, axis, size[axis + 1])]
            layout = Layout(
                (*size[:axis], size[axis] * size[axis + 1], *size[axis + 2 :]),
                (*stride[:axis], *stride[axis + 1 :]),
                layout.offset,
            )
            axis = min(axis, len(layout.size) - 2)
            if axis < 0:
                break
            continue
        axis -= 1
    return layout


def _joined(place: Sequence[IndexExpr | Value], axis: int, fast_size: IndexExpr) -> IndexExpr:
    slow, fast = place[axis], place[axis + 1]
    assert isinstance(slow, IndexExpr)
    assert isinstance(fast, IndexExpr)
    return slow * fast_size + fast


def _helps(places: _Places, axis: int, fast_size: IndexExpr) -> bool:
    before = after = 0
    for place in places:
        slow, fast = place[axis], place[axis + 1]
        if not isinstance(slow, IndexExpr) or not isinstance(fast, IndexExpr):
            return False
        before += divisions(slow) + divisions(fast)
        after += divisions(slow * fast_size + fast)
    return after < before
