"""Nodes of a graph that nothing needs, and that a program cannot tell are gone.

Operators fail for reasons that fake tensors do not know: an index out of range, a matrix that
is singular, a size that depends on data, a dtype for which there is no kernel. A program that
throws such a result away fails all the same. So only operations go that cannot fail for what they
are given.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from plait_utils.data_sizes import data_symbols

_READS = ("size", "item", "tolist")
_POINTWISE = (
    *("add", "sub", "mul", "div", "truediv", "neg", "eq", "ne", "lt", "le", "gt", "ge", "where"),
    *("exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf", "maximum", "minimum"),
    *("square", "reciprocal"),
)
_VIEWS = (
    *("view", "reshape", "flatten", "transpose", "permute", "t", "unsqueeze", "squeeze", "expand"),
    *("movedim", "narrow", "select", "chunk", "split", "unbind", "unflatten", "view_as", "detach"),
    *("expand_as", "swapaxes", "diagonal", "alias", "getattr", "getitem"),
)
_COPIES = (
    *("clone", "contiguous", "to", "float", "double", "half", "bfloat16", "long", "int", "bool"),
    *("type_as", "cat", "stack", "sum", "mean"),
)
_CREATIONS = (
    *("zeros", "ones", "full", "empty", "arange", "eye", "tensor", "zeros_like", "ones_like"),
    *("full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"),
    *("as_tensor", "scalar_tensor", "broadcast_tensors"),
)
_NEVER_FAIL = frozenset({*_POINTWISE, *_VIEWS, *_COPIES, *_CREATIONS})
"""Operations that the checks of fake tensors say all of, on tensors of common dtypes."""
_COMMON = frozenset(
    {
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    }
)
_MODULES = ("torch", "_operator", "operator", "builtins")


def drop_dead_nodes(graph: fx.Graph) -> None:
    """Remove what no output needs, and of which nobody can tell that it has not run."""
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "call_method") and not node.users and _is_silent(node):
            graph.erase_node(node)


def _is_silent(node: fx.Node) -> bool:
    """Whether nobody can tell that an operation has not run."""
    target: Any = node.target
    name = target if isinstance(target, str) else str(getattr(target, "__name__", target))
    if node.op == "call_method" and name in _READS:
        return True
    if not isinstance(target, str):
        module = getattr(target, "__module__", None) or "torch"
        if module.partition(".")[0] not in _MODULES or isinstance(target, torch._ops.OpOverload):
            return False
    if name.strip("_") not in _NEVER_FAIL or (name.endswith("_") and not name.endswith("__")):
        return False
    given = [found.meta.get("val") for found in node.all_input_nodes]
    if name.strip("_") == "getitem" and len(given) > 1:
        return False
    if "out" in node.kwargs or node.kwargs.get("inplace"):
        return False
    made = node.meta.get("val")
    if isinstance(made, torch.Tensor | tuple | list) and any(map(data_symbols, (*given, made))):
        return False
    return all(_is_common(value) for value in (*given, made))


def _is_common(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_common, value))
    if not isinstance(value, torch.Tensor):
        return True
    return value.layout is torch.strided and value.dtype in _COMMON
