"""Gradients of an embedding's rows, added right to what else its weight gets as a gradient.

A weight that is an embedding and the last layer's matrix, as language models tie them, gets a sum
of two gradients. The embedding's alone is zeros but for few rows, in as much memory as the weight.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import fx

from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.calls import call_before
from plait_fx_passes.passes.noops import same_tensor

aten = torch.ops.aten

_DTYPES = frozenset({torch.float32, torch.float64})


def _add_rows(context: PassContext) -> None:
    for node in context.graph.nodes:
        if node.target is not aten.add.Tensor or node.kwargs or not node.users:
            continue
        pair = _sum_and_rows(node)
        if pair is not None:
            _write(context, node, *pair)


def _sum_and_rows(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """What is added up so far, and the embedding's gradient that nothing else reads."""
    left, right = node.args
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node) or left is right:
        return None
    for rest, rows in ((left, right), (right, left)):
        if _is_of_rows(rows) and same_tensor(rest, rows) and same_tensor(node, rows):
            return rest, rows
    return None


def _is_of_rows(node: fx.Node) -> bool:
    if node.target is not aten.embedding_dense_backward.default or len(node.users) != 1:
        return False
    value = node.meta["val"]
    _, _, _, padding, by_frequency = node.args
    plain = value.dtype in _DTYPES and value.device.type == "cpu" and value.is_contiguous()
    return plain and not by_frequency and cast(int, padding) < 0 and value.numel() > 0


def _write(context: PassContext, node: fx.Node, rest: fx.Node, rows: fx.Node) -> None:
    """Let `rest` get the rows, in their order."""
    gradient, indices = cast("tuple[fx.Node, fx.Node]", rows.args[:2])
    width = rows.meta["val"].shape[1]
    if not context.fuel.take():
        return
    where = _viewed(context, node, indices, [-1])
    values = _viewed(context, node, gradient, [-1, width])
    made = call_before(context, node, aten.index_add.default, (rest, 0, where, values))
    made.meta = {**node.meta, "val": made.meta["val"]}
    node.replace_all_uses_with(made)
    if node in context.memory.by_root:
        context.memory.by_root[made] = context.memory.by_root.pop(node)
    context.graph.erase_node(node)
    context.graph.erase_node(rows)
    context.rewrites += 1


def _viewed(context: PassContext, node: fx.Node, source: fx.Node, shape: list[int]) -> fx.Node:
    """The value in another shape; copied where strides cannot express that."""
    if source.meta["val"].dim() == len(shape):
        return source
    if not source.meta["val"].is_contiguous():
        dense = {"memory_format": torch.contiguous_format}
        source = call_before(context, node, aten.clone.default, (source,), dense)
    return call_before(context, node, aten.view.default, (source, shape))


ADD_ROWS = Pass(
    "rows-into-sums", _add_rows, "adds an embedding's gradient to another one row by row"
)
"""Where an index occurs several times, the sum is rounded in another order than eager's."""
