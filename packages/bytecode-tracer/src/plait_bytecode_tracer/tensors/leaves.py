"""Functions of torch that become nodes of the graph, rather than being traced through."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from plait_bytecode_tracer.values.lookup import is_a

_LEAF_MODULES = frozenset(
    {
        *("torch", "torch.functional", "torch.nn.functional", "torch._C", "torch._C._nn"),
        *("torch._C._linalg", "torch._C._special", "torch._C._fft", "torch.linalg"),
        *("torch.special", "torch.fft", "torch._VF", "torch._C._VariableFunctions"),
        *("torch._tensor", "torch._torch_docs"),
    }
)

_OF_PACKAGE = frozenset(
    {
        *("is_tensor", "is_storage", "typename", "compiled_with_cxx11_abi", "sym_float"),
        *("sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sqrt", "sym_sum"),
        *("are_deterministic_algorithms_enabled", "get_deterministic_debug_mode"),
        *("get_float32_matmul_precision", "is_deterministic_algorithms_warn_only_enabled"),
        *("is_warn_always_enabled", "get_default_device", "_as_tensor_fullprec"),
    }
)
"""Python functions of `torch` itself that only tell or compute something; others are traced."""
_GENERATED = ("_nn", "_linalg", "_special", "_fft", "_sparse", "_nested")
"""Parts of `torch._C` that hold operators of the dispatcher and nothing else."""
_TELLING = (
    *("is_", "_is_", "get_", "_get_", "_has_", "_are_", "_any_", "_can_use_", "_len_"),
    *("_dispatch_is_", "_dispatch_has_", "_dispatch_get_", "_dispatch_key", "_supported_"),
    *("_cuda_is", "_cuda_get", "_cuda_has", "_cuda_can", "_mps_is", "_xpu_is", "_xpu_get"),
    *("_accelerator_is", "_accelerator_get"),
)
"""How functions of `torch._C` are named that tell a state."""
_COMPUTING = frozenset(
    {
        *("_infer_size", "_overlaps", "_segment_reduce", "_demangle", "_log_api_usage_once"),
        *("_group_tensors_by_device_and_dtype", "_conv_determine_backend_memory_format"),
        *("_select_conv_backend", "_select_batch_norm_backend", "_disabled_torch_function_impl"),
        *("_disabled_torch_dispatch_impl", "parse_schema", "_to_functionality_key"),
    }
)
"""Functions of `torch._C` that change nothing."""


@functools.cache
def _operators() -> frozenset[Any]:
    """The functions in C that call one operator of the dispatcher."""
    owners = [torch._C._VariableFunctions, *(getattr(torch._C, n, None) for n in _GENERATED)]
    found = [getattr(owner, name) for owner in owners if owner for name in dir(owner)]
    return frozenset(f for f in found if isinstance(f, types.BuiltinFunctionType))


def leaves_state(real: Any) -> bool:
    """Whether a leaf is known to change nothing but tensors that it is given, and to draw.

    What is not known so may switch a mode of torch's, and runs as it is, between two graphs.
    """
    if not is_a(real, types.BuiltinFunctionType | types.BuiltinMethodType):
        return True  # operators of the dispatcher, methods of tensors, listed Python
    return real in _operators() or real.__name__.startswith(_TELLING) or real.__name__ in _COMPUTING


_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def is_leaf(real: Any) -> bool:
    """Whether a function of torch becomes a node rather than being inlined."""
    if is_a(real, _OPERATORS):
        return True
    if is_a(real, types.BuiltinFunctionType):
        module = getattr(real, "__module__", None) or ""
        owner = getattr(real, "__self__", None)
        from_torch = module.startswith("torch") or type(owner).__name__ == "_VariableFunctionsClass"
        return from_torch or getattr(owner, "__name__", "").startswith("torch")
    if is_a(real, types.FunctionType):
        if real.__globals__.get("__name__") == "torch":
            return real.__name__ in _OF_PACKAGE
        if real.__name__.startswith("_check"):  # they read a value and raise
            return False
        return real.__globals__.get("__name__") in _LEAF_MODULES and not may_warn(real)
    if is_a(real, types.MethodDescriptorType | types.WrapperDescriptorType):
        return issubclass(torch.Tensor, real.__objclass__) and real.__objclass__ is not object
    return False


def is_of_torch(real: Any) -> bool:
    """Whether a function is one that asks `__torch_function__` of its arguments."""
    if is_a(real, types.FunctionType):
        home = real.__globals__.get("__name__")
        if home == "torch":  # others of these set what torch does
            return is_leaf(real)
        return home in _LEAF_MODULES and not real.__name__.startswith("_check")
    return is_leaf(real)


def reads_tensor(real: types.MethodWrapperType) -> bool:
    """Whether it is the `__get__` of an attribute of tensors, as modes and subclasses see it."""
    owner = getattr(real.__self__, "__objclass__", None)
    is_get = real.__name__ == "__get__" and isinstance(real.__self__, types.GetSetDescriptorType)
    return is_get and owner is torch._C.TensorBase


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


def without_fake(target: Any, error: Exception) -> str | None:
    """The name of a custom operator that failed for want of a fake kernel, if it was that."""
    from torch._subclasses.fake_tensor import UnsupportedOperatorException

    found = getattr(error, "func", None) or target
    if isinstance(found, torch._ops.OpOverloadPacket):
        name = found._qualified_op_name
    elif isinstance(found, torch._ops.OpOverload):
        name = found._schema.name
    else:
        return None
    is_missing = isinstance(error, UnsupportedOperatorException)
    is_missing |= "no fake impl registered" in str(error)
    return str(name) if is_missing and not name.startswith(("aten::", "prims::")) else None
