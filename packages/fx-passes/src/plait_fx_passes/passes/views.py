"""Chains of views as one view."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from plait_fx_passes.layouts import same_strides
from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.row_ranges import rows_of

aten = torch.ops.aten

# The arguments after the viewed tensor of the one view that does the work of two, or None.
Merge = Callable[[fx.Node, fx.Node], tuple[object, ...] | None]


def _last_shape_wins(outer: fx.Node, inner: fx.Node) -> tuple[object, ...] | None:
    return tuple(outer.args[1:])


def _composed_permutation(outer: fx.Node, inner: fx.Node) -> tuple[object, ...] | None:
    order = cast("list[int]", outer.args[1])
    first = cast("list[int]", inner.args[1])
    return ([first[axis] for axis in order],)


def _slice_of_slice(outer: fx.Node, inner: fx.Node) -> tuple[object, ...] | None:
    taken, first = rows_of(outer), rows_of(inner)
    if taken is None or first is None or taken.dim != first.dim:
        return None
    if not (taken.are_numbers and first.are_numbers):
        return None  # where the view then begins would be asked
    return taken.dim, first.start + taken.start, first.start + taken.stop


MERGES: dict[torch._ops.OpOverload, Merge] = {
    aten.view.default: _last_shape_wins,
    aten.expand.default: _last_shape_wins,
    aten.permute.default: _composed_permutation,
    aten.slice.Tensor: _slice_of_slice,
}

_VIEW_LIKE_RESHAPE = frozenset({aten.unsqueeze.default, aten.squeeze.dims})


def _merge_views(context: PassContext) -> None:
    for node in context.graph.nodes:
        if not node.users:
            continue
        inner = node.args[0] if node.args else None
        if not isinstance(inner, fx.Node) or not _mergeable(node, inner):
            continue
        merge = MERGES.get(cast("torch._ops.OpOverload", node.target))
        rest = merge(node, inner) if merge is not None else None
        if rest is not None and context.fuel.take():
            _retarget(context, node, inner, rest)


def _mergeable(node: fx.Node, inner: fx.Node) -> bool:
    if inner.target is node.target:
        return True
    return node.target is aten.view.default and inner.target in _VIEW_LIKE_RESHAPE


def _retarget(
    context: PassContext, node: fx.Node, inner: fx.Node, rest: tuple[object, ...]
) -> None:
    """Let the node look at what ``inner`` looks at, if that gives the very same view."""
    source = cast(fx.Node, inner.args[0])
    assert context.fake_mode is not None
    target = cast("torch._ops.OpOverload", node.target)
    try:
        arguments = (source.meta["val"], *rest)
        value = context.fake_mode.dispatch(target, (FakeTensor,), arguments, {})
    except (RuntimeError, ValueError):
        return  # two steps can do what one cannot, where sizes of one are squeezed in between
    old = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    if not same_strides(value, old) or value.storage_offset() != old.storage_offset():
        return
    node.args = cast("tuple[fx.node.Argument, ...]", (source, *rest))
    node.kwargs = {}
    context.rewrites += 1


MERGE_VIEWS = Pass("view-chains", _merge_views, "makes one view of chains of like views")
