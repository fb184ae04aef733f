"""Tensors of the graph whose values no input decides: they are known while tracing."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.variables import TensorVariable

_MAX_NODES = 200
_MAX_ELEMENTS = 1 << 20
_UNDECIDED = ("rand", "normal", "bernoulli", "multinomial", "dropout", "poisson", "empty", "new_")
"""Parts of the names of functions whose results differ from call to call."""


def known_tensor(state: TraceState, variable: TensorVariable) -> torch.Tensor | None:
    """The value of a tensor made of constants alone, as `torch.arange(4) + 1` is; else None.

    It is computed by the operations that make it, so that a branch on it is decided as in
    every call.
    """
    if state.mutates_tensors:
        return None
    needed = _needed(variable.node)
    if needed is None:
        return None
    values: dict[fx.Node, Any] = {}
    try:
        with torch.no_grad():
            for node in state.graph.nodes:
                if node in needed:
                    values[node] = _value(node, values)
    except Exception:  # Python raises it where the program asks for the value
        return None
    found = values[variable.node]
    return found if isinstance(found, torch.Tensor) else None


def _needed(last: fx.Node) -> set[fx.Node] | None:
    """The nodes that a node is made of, itself included; None if an input is among them."""
    needed: set[fx.Node] = set()
    waiting = [last]
    while waiting:
        node = waiting.pop()
        if node in needed:
            continue
        needed.add(node)
        if len(needed) > _MAX_NODES or not _is_decided(node):
            return None
        waiting.extend(node.all_input_nodes)
    return needed


def _is_decided(node: fx.Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    value = node.meta.get("val")
    small = not isinstance(value, torch.Tensor) or (
        value.numel() <= _MAX_ELEMENTS and value.device.type == "cpu"
    )
    known = node.op == "call_method" or _is_torch(target)
    return known and small and not any(part in name for part in _UNDECIDED)


def _is_torch(target: Any) -> bool:
    """Whether a function is an operator of Python's or one of torch's own, not a user's."""
    module = getattr(target, "__module__", None) or ""
    is_builtin = getattr(operator, getattr(target, "__name__", ""), None) is target
    owner = type(getattr(target, "__self__", None)).__name__
    return is_builtin or module.startswith("torch") or owner == "_VariableFunctionsClass"


def _value(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    args = fx.node.map_arg(node.args, lambda n: values[n])
    kwargs = fx.node.map_arg(node.kwargs, lambda n: values[n])
    target: Any = node.target
    if node.op == "call_method":
        owner, *rest = args
        return getattr(owner, target)(*rest, **kwargs)
    return target(*args, **kwargs)
