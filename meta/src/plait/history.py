"""Whether gradients flow through a captured graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import fx


def needs_gradients(captured: fx.GraphModule) -> bool:
    """Whether autograd would record anything that the graph computes."""
    import torch

    made_leaves = (torch.nn.Parameter, "requires_grad_")
    if any(node.target in made_leaves for node in captured.graph.nodes):
        return True  # what comes out is a parameter, also where gradients are off
    switches = captured.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)
    if not torch.is_grad_enabled() and not any(node.args[0] is True for node in switches):
        return False
    return any(
        isinstance(leaf, torch.Tensor) and _has_history(leaf)
        for node in captured.graph.nodes
        if node.op not in ("placeholder", "get_attr", "output")
        for value in _values(node)
        for leaf in _leaves(value)
    )


def _values(node: fx.Node) -> list[object]:
    """What a node computes; of one that only writes, as ``setitem``, what it is given."""
    value = _value(node)
    return [_value(each) for each in node.all_input_nodes] if value is None else [value]


def _value(node: fx.Node) -> object:
    return node.meta.get("val", node.meta.get("example_value"))


def _has_history(tensor: torch.Tensor) -> bool:
    try:
        return tensor.grad_fn is not None
    except RuntimeError:  # of a view that autograd no longer follows, since its base was written to
        return True


def _leaves(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else (value,)
