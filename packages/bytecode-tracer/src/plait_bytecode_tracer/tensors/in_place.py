"""Whether an elementwise in-place operation is possible at all.

Some kernels for fake tensors take operands that the real ones refuse: an int tensor multiplied
in place by a float, a tensor changed in place to another shape. The graph would fail only as
it runs, when the effects of the code before it can no longer come first. So such operations
are tried with real tensors of one element each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.values.variables import HookHandle
from plait_utils.wrappings import is_wrapper

_BINARY = (
    *("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "floor_divide"),
    *(
        "fmod",
        "remainder",
        "pow",
        "atan2",
        "arctan2",
        "hypot",
        "nextafter",
        "copysign",
        "gcd",
        "lcm",
    ),
    *(
        "heaviside",
        "ldexp",
        "xlogy",
        "igamma",
        "igammac",
        "clamp",
        "clamp_min",
        "clamp_max",
        "clip",
    ),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"),
    *("eq", "ne", "not_equal", "lt", "less", "le", "less_equal", "gt", "greater", "ge"),
    *("greater_equal", "logical_and", "logical_or", "logical_xor", "lerp", "addcmul", "addcdiv"),
)
_OPERATORS = (
    *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"),
    *("iand", "ior", "ixor", "ilshift", "irshift"),
)
_OF_INTEGERS = ("bitwise", "iand", "ior", "ixor", "ilshift", "irshift", "gcd", "lcm")
_TRIED = frozenset({*(f"{name}_" for name in _BINARY), *_OPERATORS})


def require_possible(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise what the operation raises for operands of these dtypes and shapes, if it does.

    Args:
        target: a method's name or a function of `operator`.
        args, kwargs: with fake tensors, on CPUs; others are not tried.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if not args or not isinstance(args[0], torch.Tensor):
        return
    if name not in _TRIED:
        if is_wrapper(args[0]):
            return
        if name == "setitem" or (name.endswith("_") and not name.endswith("__")):
            _require_own_elements(target, args, kwargs)
        return
    if any(map(is_wrapper, (*args, *kwargs.values()))):
        return  # its class decides
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    if any(x.device.type != "cpu" or x.layout is not torch.strided for x in tensors):
        return
    _require_apart(args[0], tensors[1:])
    whole = args[0].shape
    for other in tensors[1:]:
        if not all(type(size) is int for size in (*whole, *other.shape)):
            continue  # symbolic sizes: their guards say whether they fit
        # torch gives this function no types
        shape = torch.broadcast_shapes(whole, other.shape)  # type: ignore[no-untyped-call]
        if shape != whole:
            raise RuntimeError(
                f"output with shape {list(whole)} doesn't match the broadcast shape {list(shape)}"
            )
    takes_floats = not name.startswith(_OF_INTEGERS)
    if takes_floats and args[0].dtype.is_floating_point and len({x.dtype for x in tensors}) == 1:
        return
    real_args = [_small(x) for x in args]
    real_kwargs = {key: _small(value) for key, value in kwargs.items()}
    with torch.no_grad():
        if isinstance(target, str):
            getattr(real_args[0], target)(*real_args[1:], **real_kwargs)
        else:
            target(*real_args, **real_kwargs)


def _require_apart(changed: torch.Tensor, others: Sequence[torch.Tensor]) -> None:
    """Raise where elements of a tensor share memory with each other, or with other operands'."""
    sizes = [*changed.shape, *changed.stride()]
    is_symbolic = not all(type(size) is int for size in sizes)
    pairs = zip(changed.shape, changed.stride(), strict=True)
    if any(step == 0 and n > 1 for n, step in pairs):  # guards the answer for symbolic ones
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location. Please clone() the tensor before performing the operation."
        )
    if is_symbolic:
        return
    for other in others:
        if _overlaps_partly(changed, other):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to "
                "tensor refer to a single memory location. Please clone() the tensor before "
                "performing the operation."
            )


def require_unhooked(handles: Iterable[HookHandle]) -> None:
    """Break before a tensor with a hook is changed: the hook sees the gradient of what it was."""
    for handle in handles:
        tensor = handle.tensor
        if tensor is not None and handle.version not in (None, tensor.fake._version):
            raise TraceBreakError("GB0002", "a change of a tensor after a hook was registered")


_LARGEST = 1 << 20
"""How many elements the memory of a tensor has at most, with which an operation is tried."""


def _require_own_elements(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Try an operation for real that changes a tensor of which elements share memory.

    Some operations refuse that, and some do not.
    """
    changed = args[0]
    pairs = zip(changed.shape, changed.stride(), strict=True)
    if not any(step == 0 and n > 1 for n, step in pairs) or changed.device.type != "cpu":
        return
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    if any(_elements(x) > _LARGEST for x in tensors):
        return
    real_args = [_alike(x) for x in args]
    real_kwargs = {key: _alike(value) for key, value in kwargs.items()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        if isinstance(target, str):
            getattr(real_args[0], target)(*real_args[1:], **real_kwargs)
        else:
            target(*real_args, **real_kwargs)


def _elements(x: torch.Tensor) -> int:
    """How many elements the memory has that a tensor reaches over."""
    pairs = zip(x.shape, x.stride(), strict=True)
    return 1 + sum((int(n) - 1) * int(step) for n, step in pairs if n > 0)


def _alike(value: Any) -> Any:
    """A real tensor with the layout of a fake one; also in a tuple, as indices are."""
    if isinstance(value, tuple | list):
        return type(value)(map(_alike, value))
    if not isinstance(value, torch.Tensor):
        return value
    memory = torch.zeros(_elements(value), dtype=value.dtype)
    return memory.as_strided([int(n) for n in value.shape], [int(n) for n in value.stride()])


def _overlaps_partly(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two dense tensors share a part of their memory, as ATen decides it."""
    if one is other or one.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return False
    if not (one.is_contiguous() and other.is_contiguous()) or not (one.numel() and other.numel()):
        return False  # ATen does not look closer either
    begin, other_begin = (x.storage_offset() * x.element_size() for x in (one, other))
    end = begin + one.numel() * one.element_size()
    other_end = other_begin + other.numel() * other.element_size()
    if (begin, end) == (other_begin, other_end):
        return one.stride() != other.stride()
    return begin < other_end and other_begin < end


def _small(value: Any) -> Any:
    """A real tensor of one element with the dtype and dimensions of a fake one."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.ones([1] * value.dim(), dtype=value.dtype)
