"""What a kernel reads of a buffer, where that does not begin at the buffer's first element.

The steps of a recurrent network read one part after the other of what is computed for all of them.
With the place of the part in its coordinates each step's kernel is another one. So a kernel is
built over the part alone, the *window*, and each launch says where in its buffer that begins: steps
that differ in nothing else are one kernel. What is written, or read at computed places, or on other
devices than CPUs, keeps its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from plait_ir_lowering import (
    Buffer,
    IndexExpr,
    Layout,
    Load,
    Value,
    as_index,
    bounds,
    buffers_in,
    rewrite,
)
from plait_scheduler.domains import is_affine
from plait_scheduler.groups import Group, Member
from plait_utils import dataclass

_Extent = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a buffer: for each dimension the first coordinate, and as many as `layout` has."""

    first: tuple[int, ...]
    layout: Layout

    @property
    def offset(self) -> int:
        """Elements between those that the buffer and its window begin with."""
        strides = [stride.as_int() for stride in self.layout.stride]
        return sum(at * stride for at, stride in zip(self.first, strides, strict=True))

    def load(self, load: Load) -> Load:
        """The load of the same element, by its coordinates in the window."""
        pairs = zip(load.index, self.first, strict=True)
        index = [at - first if isinstance(at, IndexExpr) else at for at, first in pairs]
        return Load(load.buffer, index, load.dtype)


def windows_of(group: Group, buffers: Mapping[str, Buffer]) -> dict[str, Window]:
    """The windows of the buffers that `group` reads from a later element on."""
    if group.is_scatter:
        return {}
    found: dict[str, list[_Extent | None]] = {}
    for member in group.members:
        for load in member.node.loads:
            if load.buffer in group.writes:
                continue
            layout = buffers[load.buffer].layout
            axes = zip(load.index, layout.size, layout.stride, strict=True)
            read = [_extent(at, size, stride) for at, size, stride in axes]
            known = found.get(load.buffer)
            joined = read if known is None else list(map(_joined, known, read))
            found[load.buffer] = joined
    return {
        name: _window(buffers[name].layout, extents)
        for name, extents in found.items()
        if any(extent is not None and extent[0] for extent in extents) and _is_known(buffers[name])
    }


def within(member: Member, windows: Mapping[str, Window]) -> Member:
    """The member with its loads by their coordinates in windows."""
    if not windows or windows.keys().isdisjoint(buffers_in(member.node.value)):
        return member

    def leaf(value: Value) -> Value | None:
        if isinstance(value, Load) and value.buffer in windows:
            return windows[value.buffer].load(value)
        return None

    node = member.node
    value = rewrite(node.value, leaf, lambda expr: expr)
    return replace(member, node=replace(node, value=value))


def _extent(at: IndexExpr | Value, size: IndexExpr, stride: IndexExpr) -> _Extent | None:
    """The first and last coordinate, where they are known and certainly in the buffer; None also
    where all coordinates are one place."""
    if not isinstance(at, IndexExpr) or not size.is_constant or not is_affine(at):
        return None
    if not stride.terms:
        return None
    low, high = bounds(at)
    if low is None or high is None or low < 0 or high >= size.as_int():
        return None
    return low, high


def _joined(one: _Extent | None, other: _Extent | None) -> _Extent | None:
    if one is None or other is None:
        return None
    return min(one[0], other[0]), max(one[1], other[1])


def _is_known(buffer: Buffer) -> bool:
    layout = buffer.layout
    numbers = (*layout.size, *layout.stride, layout.offset)
    return buffer.device.type == "cpu" and all(number.is_constant for number in numbers)


def _window(layout: Layout, extents: Sequence[_Extent | None]) -> Window:
    first: list[int] = []
    size: list[IndexExpr] = []
    for extent, whole in zip(extents, layout.size, strict=True):
        low, high = extent or (0, 0)
        first.append(low)
        size.append(as_index(high - low + 1) if low else whole)
    return Window(tuple(first), replace(layout, size=tuple(size)))
