"""Which nodes of a graph look at whose memory, from the schemas of the operators."""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.op_info import OpKind, op_info

# Functional by their schemas, yet their kernels return memory of their first argument.
_UNSAFE_VIEWS = frozenset({torch.ops.aten._unsafe_view.default})


def is_view(node: fx.Node) -> bool:
    """Whether the node's value looks at the memory of its first argument."""
    target = node.target
    return isinstance(target, OpOverload) and (
        op_info(target).kind is OpKind.VIEW or target in _UNSAFE_VIEWS
    )


def storage_root(node: fx.Node) -> fx.Node:
    """The node that allocates the memory which ``node``'s value looks at."""
    while is_view(node):
        base = node.args[0] if node.args else next(iter(node.kwargs.values()))
        assert isinstance(base, fx.Node)
        node = base
    return node
