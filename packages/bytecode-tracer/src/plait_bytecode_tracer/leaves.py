"""Functions of torch that become nodes of the graph, rather than being traced through."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

_LEAF_MODULES = frozenset(
    {
        *("torch", "torch.functional", "torch.nn.functional", "torch._C", "torch._C._nn"),
        *("torch._C._linalg", "torch._C._special", "torch._C._fft", "torch.linalg"),
        *("torch.special", "torch.fft", "torch._VF", "torch._C._VariableFunctions"),
        *("torch._tensor", "torch._torch_docs"),
    }
)


def is_leaf(real: Any) -> bool:
    """Whether a function of torch becomes a node rather than being inlined."""
    if isinstance(real, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return True
    if isinstance(real, types.BuiltinFunctionType | types.BuiltinMethodType):
        module = getattr(real, "__module__", None) or ""
        owner = getattr(real, "__self__", None)
        from_torch = module.startswith("torch") or type(owner).__name__ == "_VariableFunctionsClass"
        return from_torch or getattr(owner, "__name__", "").startswith("torch")
    if isinstance(real, types.FunctionType):
        if real.__name__.startswith("_check"):  # they read a value and raise
            return False
        return real.__globals__.get("__name__") in _LEAF_MODULES and not may_warn(real)
    if isinstance(real, types.MethodDescriptorType | types.WrapperDescriptorType):
        return issubclass(torch.Tensor, real.__objclass__) and real.__objclass__ is not object
    return False


def is_of_torch(real: Any) -> bool:
    """Whether a function is one that asks `__torch_function__` of its arguments."""
    if isinstance(real, types.FunctionType):
        checks = real.__name__.startswith("_check")
        return real.__globals__.get("__name__") in _LEAF_MODULES and not checks
    return is_leaf(real)


@functools.lru_cache(maxsize=1024)
def may_warn(function: types.FunctionType) -> bool:
    """Whether a function of torch, or a helper of its module, warns by itself.

    A warning names the line that called the function: it is traced through, so that Python
    runs what warns in the user's own frames.
    """
    waiting, seen = [function], {function}
    while waiting:
        found = waiting.pop()
        names = found.__code__.co_names
        if "warnings" in names and "warn" in names:
            return True
        space = found.__globals__
        helpers = [space[name] for name in names if name.startswith("_") and name in space]
        for helper in helpers:
            if isinstance(helper, types.FunctionType) and helper.__globals__ is space:
                waiting += [helper] if helper not in seen else []
                seen.add(helper)
    return False
