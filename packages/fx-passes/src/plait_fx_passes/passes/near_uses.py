"""Calls right before what uses them first, where their operands live as long anyway.

What a program computes long before it is used takes memory, and leaves the caches, in the meantime.
A call moves behind others only if fewer bytes are then held: what it makes is at least as large as
what only it keeps alive. For graphs whose calls run in their order; plait's scheduler has its own.
"""

from __future__ import annotations

import torch
from torch import fx

from plait_fx_passes.aliasing import is_view, storage_root
from plait_fx_passes.layouts import traced_numel
from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.cleanup import has_effects


def _move_near_uses(context: PassContext) -> None:
    order = list(context.graph.nodes)
    place = {node: at for at, node in enumerate(order)}
    # The last place where each memory is read, in the order so far: nodes behind one were moved.
    last: dict[fx.Node, int] = {}
    for node in order:
        for each in node.all_input_nodes:
            root = storage_root(each)
            last[root] = max(last.get(root, -1), place[node])
    for node in reversed(order):
        if node.op != "call_function" or not node.users or has_effects(node):
            continue
        first = min(node.users)
        if node.next is first or not _holds_less(node, place[first], last):
            continue
        if not context.fuel.take():
            return
        moved = context.move(node, first)
        context.rewrites += 1
        place[moved] = place[first]
        for each in moved.all_input_nodes:
            root = storage_root(each)
            last[root] = max(last[root], place[first])


def _holds_less(node: fx.Node, until: int, last: dict[fx.Node, int]) -> bool:
    """Whether what a call makes is as large as all that would live longer for it."""
    if is_view(node):
        return last[storage_root(node)] >= until
    longer = {storage_root(each) for each in node.all_input_nodes}
    held = sum(_bytes(each) for each in longer if each.op != "placeholder" and last[each] < until)
    return held <= _bytes(node)


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return sum(traced_numel(p) * p.dtype.itemsize for p in parts if isinstance(p, torch.Tensor))


NEAR_USES = Pass(
    "near-uses",
    _move_near_uses,
    "moves calls right before their first use where that holds less memory meanwhile",
)
"""Every bit stays; what changes is when."""
