"""Places in the memory of inputs, which may begin elsewhere in every call.

``as_strided`` counts from the beginning of the storage. A graph was recorded with inputs that begin
at some element of theirs; where torch's own kernels run it, such places are counted from there.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from plait_fx_passes.aliasing import storage_root

_OFFSETS = {torch.ops.aten.as_strided.default: 3, torch.ops.aten.as_strided_scatter.default: 4}
"""Where among its arguments each operator has the offset."""


def count_from_inputs(graph: fx.Graph) -> fx.Graph:
    """Let every place in an input's memory be relative to where the operand begins, in place."""
    for target, position in _OFFSETS.items():
        for node in graph.find_nodes(op="call_function", target=target):
            operand = node.args[0]
            if len(node.args) <= position or not _moves(storage_root(operand)):
                continue
            recorded = operand.meta["val"].storage_offset()
            with graph.inserting_before(node):
                begin = graph.call_method("storage_offset", (operand,))
                place = graph.call_function(operator.add, (begin, node.args[position] - recorded))
            node.update_arg(position, place)
    return graph


def _moves(root: fx.Node) -> bool:
    """Whether a tensor begins where an input does: scatters keep the place of what they copy."""
    return root.op == "placeholder" or root.target is torch.ops.aten.as_strided_scatter.default
