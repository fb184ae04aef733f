"""What an attention multiplies, read where it lies rather than as a copy of it.

A product of matrices takes dense batches of one element type, so queries, keys and values are
often copies: widened to f32, repeated for the heads that share them, or of transposed inputs. A
kernel that reads them through any strides, and multiplies 16 bits, needs none of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait_ir_lowering import (
    Buffer,
    Definition,
    IndexExpr,
    Layout,
    Load,
    Op,
    Pointwise,
    TensorRef,
    Value,
    Var,
    as_index,
    product,
    score_dtype,
    stride_of,
)
from plait_scheduler.domains import is_affine, plain
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Operands:
    """What defines each buffer, and all buffers by name."""

    makers: Mapping[str, Definition]
    buffers: Mapping[str, Buffer]

    def original(self, ref: TensorRef, *, widened: bool) -> TensorRef:
        """The batches of matrices that `ref` is a copy of; `widened` where it may be an f32 one of
        16 bits, which stand for the same numbers."""
        found = ref
        while (earlier := self._copied(found, widened)) is not None:
            found = earlier
        return found

    def _copied(self, ref: TensorRef, widened: bool) -> TensorRef | None:
        maker = self.makers.get(ref.buffer)
        if maker is None or not isinstance(maker.body, Pointwise) or ref.dtype is not None:
            return None
        (made,) = maker.buffers
        turned = _is_turned(ref.view or made.layout, made)
        load = _source(maker.body.value, widened)
        if turned is None or load is None or load.buffer not in self.buffers:
            return None
        index = plain(load.index)
        offset = None if index is None else self.buffers[load.buffer].layout.linear(index)
        layout = None if offset is None else _layout(maker.body.ranges, offset)
        if layout is None:
            return None
        if turned:
            layout = Layout(_swapped(layout.size), _swapped(layout.stride), layout.offset)
        return TensorRef(load.buffer, layout)


def _source(value: Value, widened: bool) -> Load | None:
    """What a copy reads."""
    if widened and isinstance(value, Op) and value.name == "to":
        (narrow,) = value.args
        if narrow.dtype is not value.dtype and score_dtype(narrow.dtype) is value.dtype:
            value = narrow
    return value if isinstance(value, Load) else None


def _is_turned(view: Layout, made: Buffer) -> bool | None:
    """Whether the matrices that a view takes are those of a dense buffer's last two dimensions
    turned around; None where they are others, or other batches."""
    size, stride = made.layout.size, made.layout.stride
    if len(size) < 3 or not made.layout.is_row_major or view.offset is not as_index(0):
        return None
    leading = Layout(view.size[:-2], view.stride[:-2])
    matrix = product(size[-2:])
    dense = Layout.of((*leading.size, matrix), (*leading.stride, 1))
    if product(leading.size) is not product(size[:-2]) or not dense.is_row_major:
        return None
    if (view.size[-2:], view.stride[-2:]) == (size[-2:], stride[-2:]):
        return False
    turned = (_swapped(size)[-2:], _swapped(stride)[-2:])
    return True if (view.size[-2:], view.stride[-2:]) == turned else None


def _swapped(sizes: tuple[IndexExpr, ...]) -> tuple[IndexExpr, ...]:
    return (*sizes[:-2], sizes[-1], sizes[-2])


def _layout(ranges: Sequence[Var], offset: IndexExpr) -> Layout | None:
    """An offset over variables as a layout of their extents; None where it is none."""
    strides: list[IndexExpr] = []
    start = offset
    if not is_affine(offset):
        return None
    for var in ranges:
        stride = stride_of(offset, var)
        if stride is None:
            return None
        strides.append(stride)
        start = start - stride * var.expr
    return Layout(tuple(var.extent for var in ranges), tuple(strides), start)
