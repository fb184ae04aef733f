"""Kernel parameters with as few dimensions as their accesses need.

A kernel over merged loops reads a buffer of shape [8, 64, 384] at [i0 // 64, i0 % 64, r0].
The same memory seen as [512, 384] is read at [i0, r0]: easier to read, and one kernel
for both shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from plait_ir_lowering import IndexExpr, Layout, Load, Local, Value, as_index, post_order, rewrite
from plait_scheduler.domains import divisions, plain, position
from plait_scheduler.program import Attend, Kernel, Mix, Param, Statement, Store
from plait_utils import dataclass

_Index = tuple[IndexExpr | Value, ...]


def compact_params(kernel: Kernel) -> Kernel:
    """Leave out dimensions of size 1, and merge those where that takes `//` and `%` out of
    accesses."""
    if any(isinstance(statement, Attend | Mix) for statement in kernel.statements):
        return kernel  # it reads parameters by views of them
    return _with_views(kernel, _view)


def flat_params(kernel: Kernel) -> Kernel:
    """Take dense parameters for vectors where that takes all `//` and `%` out of accesses."""
    return _with_views(kernel, _flat_view)


def _with_views(kernel: Kernel, view: Callable[[Param, Sequence[_Index]], _View]) -> Kernel:
    """`kernel` with its parameters seen otherwise."""
    views = {param.name: view(param, _accesses(kernel, param.name)) for param in kernel.params}
    if all(views[param.name].layout is param.layout for param in kernel.params):
        return kernel

    def leaf(value: Value) -> Value | None:
        if isinstance(value, Load):
            return Load(value.buffer, views[value.buffer].moved(value.index), value.dtype)
        return None

    memo: dict[Value, Value] = {}
    statements: list[Statement] = []
    for statement in kernel.statements:
        value = rewrite(statement.value, leaf, lambda expr: expr, memo)
        if isinstance(statement, Store):
            moved = views[statement.param].moved(statement.index)
            index = tuple(at for at in moved if isinstance(at, IndexExpr | Local))
            statements.append(replace(statement, index=index, value=value))
        else:
            statements.append(replace(statement, value=value))
    params = tuple(replace(param, layout=views[param.name].layout) for param in kernel.params)
    return replace(kernel, params=params, statements=tuple(statements))


@dataclass(frozen=True, slots=True)
class _View:
    """A parameter with other dimensions: for each the old ones that it merges."""

    layout: Layout
    axes: tuple[tuple[int, ...], ...]
    old: tuple[IndexExpr, ...]
    """The sizes of the old dimensions."""

    def moved(self, index: _Index) -> _Index:
        """Coordinates in terms of the new dimensions."""
        return tuple(_joined(index, merged, self.old) for merged in self.axes)


def _joined(index: _Index, axes: Sequence[int], size: Sequence[IndexExpr]) -> IndexExpr | Value:
    if len(axes) == 1:
        return index[axes[0]]
    places = plain([index[axis] for axis in axes])
    assert places is not None
    return position(places, [size[axis] for axis in axes])


def _accesses(kernel: Kernel, name: str) -> list[_Index]:
    """The coordinates of all accesses to one parameter."""
    found: dict[_Index, None] = {}
    for statement in kernel.statements:
        for value in post_order([statement.value]):
            if isinstance(value, Load) and value.buffer == name:
                found[value.index] = None
        if isinstance(statement, Store) and statement.param == name:
            found[statement.index] = None
    return list(found)


def _view(param: Param, accesses: Sequence[_Index]) -> _View:
    size, stride = param.layout.size, param.layout.stride
    kept = [
        axis
        for axis in range(len(size))
        if size[axis] is not as_index(1) or any(a[axis] is not as_index(0) for a in accesses)
    ]
    axes: list[tuple[int, ...]] = []
    for axis in reversed(kept):
        if axes and stride[axis] is stride[axes[0][0]] * size[axes[0][0]]:
            merged = (axis, *axes[0])
            if _helps(accesses, axis, axes[0], size):
                axes[0] = merged
                continue
        axes.insert(0, (axis,))
    if len(axes) == len(size):
        return _View(param.layout, tuple(axes), size)
    sizes = []
    for merged in axes:
        extent = as_index(1)
        for axis in merged:
            extent = extent * size[axis]
        sizes.append(extent)
    layout = Layout(tuple(sizes), tuple(stride[m[-1]] for m in axes), param.layout.offset)
    return _View(layout, tuple(axes), size)


def _flat_view(param: Param, accesses: Sequence[_Index]) -> _View:
    layout, axes = param.layout, tuple(range(len(param.layout.size)))
    joined = [_joined(access, axes, layout.size) for access in accesses if plain(access)]
    known = len(joined) == len(accesses) and all(isinstance(at, IndexExpr) for at in joined)
    if len(axes) < 2 or not layout.is_row_major or not known:
        return _View(layout, tuple((axis,) for axis in axes), layout.size)
    if any(divisions(at) for at in joined if isinstance(at, IndexExpr)):
        return _View(layout, tuple((axis,) for axis in axes), layout.size)
    flat = Layout((layout.numel,), (as_index(1),), layout.offset)
    return _View(flat, (axes,), layout.size)


def _helps(
    accesses: Sequence[_Index], axis: int, inner: tuple[int, ...], size: Sequence[IndexExpr]
) -> bool:
    """Whether merging takes divisions out of the coordinates."""
    before = after = 0
    for access in accesses:
        slow = access[axis]
        fast = None if plain([access[n] for n in inner]) is None else _joined(access, inner, size)
        if not isinstance(slow, IndexExpr) or not isinstance(fast, IndexExpr):
            return False
        joined = _joined(access, (axis, *inner), size)
        assert isinstance(joined, IndexExpr)
        before += divisions(slow) + divisions(fast)
        after += divisions(joined)
    return after < before
