"""What a write through a view does to the tensor it looks at: one inverse per view operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import fx

from plait_fx_passes.aten_graph import ViewStep
from plait_fx_passes.errors import AtenTraceError

if TYPE_CHECKING:
    from plait_fx_passes.record.recorder import Recorder

aten = torch.ops.aten

Inverse = Callable[["Recorder", ViewStep, fx.Node, fx.Node], fx.Node]


def undo_view(recorder: Recorder, step: ViewStep, parent: fx.Node, value: fx.Node) -> fx.Node:
    """The parent's contents after ``value`` was written through ``step``.

    Raises:
        AtenTraceError: the view has no inverse here.
    """
    inverse = _INVERSES.get(step.op)
    if inverse is None:
        raise AtenTraceError(
            f"writing through a view made by {step.op} is not supported",
            where=recorder.where,
            hint="write to the tensor it is a view of, or clone the view first",
        )
    return inverse(recorder, step, parent, value)


def reshaped(recorder: Recorder, value: fx.Node, shape: torch.Size) -> fx.Node:
    """``value`` in another shape; copied first where its strides do not allow a view."""
    try:
        return recorder.apply(aten.view.default, (value, list(shape)), {})
    except (RuntimeError, ValueError):
        contiguous = {"memory_format": torch.contiguous_format}
        dense = recorder.apply(aten.clone.default, (value,), contiguous)
        return recorder.apply(aten.view.default, (dense, list(shape)), {})


def _undo_reshape(recorder: Recorder, step: ViewStep, parent: fx.Node, value: fx.Node) -> fx.Node:
    return reshaped(recorder, value, parent.meta["val"].shape)


def _undo_permute(recorder: Recorder, step: ViewStep, parent: fx.Node, value: fx.Node) -> fx.Node:
    order = step.args[0]
    assert isinstance(order, (list, tuple))
    rank = len(order)
    places = [axis % rank for axis in order]
    inverse = [places.index(axis) for axis in range(rank)]
    return recorder.apply(aten.permute.default, (value, inverse), {})


def _scatter_with(op: torch._ops.OpOverload) -> Inverse:
    def inverse(recorder: Recorder, step: ViewStep, parent: fx.Node, value: fx.Node) -> fx.Node:
        return recorder.apply(op, (parent, value, *step.args), dict(step.kwargs))

    return inverse


def _undo_as_strided(
    recorder: Recorder, step: ViewStep, parent: fx.Node, value: fx.Node
) -> fx.Node:
    size, stride, offset = step.args
    assert isinstance(offset, int)
    # Steps count the offset from the base; the operator counts it from the storage.
    start = offset + parent.meta["val"].storage_offset()
    return recorder.apply(aten.as_strided_scatter.default, (parent, value, size, stride, start), {})


def _self_inverse(recorder: Recorder, step: ViewStep, parent: fx.Node, value: fx.Node) -> fx.Node:
    return recorder.apply(step.op, (value,), {})


def _undo_dtype(recorder: Recorder, step: ViewStep, parent: fx.Node, value: fx.Node) -> fx.Node:
    return recorder.apply(aten.view.dtype, (value, parent.meta["val"].dtype), {})


def _undo_as_real(recorder: Recorder, step: ViewStep, parent: fx.Node, value: fx.Node) -> fx.Node:
    return recorder.apply(aten.view_as_complex.default, (value,), {})


def _undo_as_complex(
    recorder: Recorder, step: ViewStep, parent: fx.Node, value: fx.Node
) -> fx.Node:
    return recorder.apply(aten.view_as_real.default, (value,), {})


_INVERSES: dict[torch._ops.OpOverload, Inverse] = {
    aten.view.default: _undo_reshape,
    aten.unsqueeze.default: _undo_reshape,
    aten.squeeze.default: _undo_reshape,
    aten.squeeze.dim: _undo_reshape,
    aten.squeeze.dims: _undo_reshape,
    # Eager refuses to write to a tensor whose elements share memory, so nothing was repeated.
    aten.expand.default: _undo_reshape,
    aten.permute.default: _undo_permute,
    aten.slice.Tensor: _scatter_with(aten.slice_scatter.default),
    aten.select.int: _scatter_with(aten.select_scatter.default),
    aten.diagonal.default: _scatter_with(aten.diagonal_scatter.default),
    aten.as_strided.default: _undo_as_strided,
    aten.view.dtype: _undo_dtype,
    aten.view_as_real.default: _undo_as_real,
    aten.view_as_complex.default: _undo_as_complex,
    aten._conj.default: _self_inverse,
    aten._neg_view.default: _self_inverse,
}
