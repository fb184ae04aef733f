"""Operators whose kernels in torch for tensors without data give other strides than the real ones.

Those kernels are written with several operators, the last of which decides the strides of the
result; the real ones lay it out by their operands, or row by row. Those here ask an operator of
the same promotion whose result is laid out in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._prims_common import suggest_memory_format

Kernel = Callable[..., Any]
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def divided(first: Any, second: Any, *, rounding_mode: str | None = "floor") -> torch.Tensor:
    """`aten.floor_divide` and `aten.div.Tensor_mode`."""
    if rounding_mode is None:
        return torch.div(first, second)
    if rounding_mode not in ("trunc", "floor"):
        raise RuntimeError(
            "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
            f"'{rounding_mode}'"
        )
    found = torch.mul(first, second)
    if found.is_complex():
        raise RuntimeError(f"{rounding_mode} division is not defined for complex numbers")
    return found


def heaviside(input: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`aten.heaviside`."""
    if input.dtype is not values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    if input.is_complex():
        raise RuntimeError("heaviside is not yet implemented for complex tensors.")
    return torch.maximum(input, values)


def power_of_number(base: Any, exponent: torch.Tensor) -> torch.Tensor:
    """`aten.pow.Scalar`, whose result is laid out row by row."""
    return torch.empty(
        exponent.shape, dtype=torch.result_type(base, exponent), device=exponent.device
    )


def log_sigmoid(input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`aten.log_sigmoid_forward`: row by row on CPUs, where a buffer is as large as the result."""
    if input.device.type != "cpu":
        return torch.empty_like(input), input.new_empty((0,))
    return input.new_empty(input.shape), input.new_empty(input.shape)


def index_fill(input: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
    """`aten.index_fill`, which fills a copy."""
    rank = max(input.dim(), 1)
    if not -rank <= dim < rank:
        told = f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}]"
        raise IndexError(f"{told}, but got {dim})")
    if index.dtype is not torch.int64:
        raise IndexError("index_fill_(): Expected dtype int64 for index.")
    if index.dim() > 1:
        raise RuntimeError("Index has to be a vector/scalar")
    if isinstance(value, torch.Tensor) and value.dim():
        raise RuntimeError("index_fill_ only supports a 0-dimensional value tensor")
    return input.clone()


def is_in(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> torch.Tensor:
    """`aten.isin`, whose result is laid out row by row."""
    given = elements if isinstance(elements, torch.Tensor) else test_elements
    shape = elements.shape if isinstance(elements, torch.Tensor) else ()
    return torch.empty(shape, dtype=torch.bool, device=given.device)


def channel_shuffle(input: torch.Tensor, groups: int) -> torch.Tensor:
    """`aten.channel_shuffle`, which keeps channels last."""
    if input.dim() <= 2:
        raise RuntimeError(
            "channel_shuffle expects input with > 2 dims, but got input with sizes "
            f"{list(input.shape)}"
        )
    if groups <= 0:
        raise RuntimeError(
            f"Number of groups to divide channels in must be positive. Value of groups:{groups}"
        )
    if input.shape[1] % groups:
        raise RuntimeError(
            f"Number of channels must be divisible by groups. Got {input.shape[1]} channels and "
            f"{groups} groups."
        )
    return _in_format_of(input, input)


def normalized(name: str) -> Kernel:
    """A batch norm, whose result is laid out row by row or with channels last.

    On CPUs statistics have the type of the parameters, and those that are given are not returned.
    """

    packet, _, overload = name.removeprefix("aten.").partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload)
    results = len(operator._schema.returns)

    def kernel(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if kwargs or None in args[2:4] or not _is_regular(input, args, input.shape[1:2]):
            found = decomposition_table[operator](input, *args, **kwargs)
        else:
            found = (input,) * results
        statistics = found[1:]
        if input.device.type == "cpu":
            kept = _parameter_dtype(input, args)
            shape = (0,) if "no_training" in name else input.shape[1:2]
            statistics = [input.new_empty(shape, dtype=kept) for _ in statistics]
        if input.is_contiguous():
            return (
                torch.empty(input.shape, dtype=found[0].dtype, device=input.device),
                *statistics,
            )
        return (_in_format_of(found[0], input), *statistics)

    return kernel


def _is_regular(input: torch.Tensor, arguments: Sequence[Any], shape: Sequence[int]) -> bool:
    """Whether a norm on a CPU is one of floats, with parameters of a shape: torch's rule for it,
    which costs milliseconds, has nothing to refuse."""
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    return (
        input.dim() >= 2
        and input.device.type == "cpu"
        and not any(each._has_symbolic_sizes_strides for each in (input, *tensors))
        and all(each.dtype in _FLOATS for each in (input, *tensors))
        and all(each.shape == shape for each in tensors)
    )


def _parameter_dtype(input: torch.Tensor, parameters: Sequence[Any]) -> torch.dtype:
    given = [each.dtype for each in parameters if isinstance(each, torch.Tensor)]
    return given[0] if given else input.dtype


def group_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    batch: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> Any:
    """`aten.native_group_norm`: on CPUs statistics have the type of the parameters."""
    kept = _parameter_dtype(input, (weight, bias))
    fits = (batch, channels) == input.shape[:2] and batch * channels * pixels == input.numel()
    if fits and channels % groups == 0 and _is_regular(input, (weight, bias), (channels,)):
        statistics = [input.new_empty((batch, groups), dtype=kept) for _ in range(2)]
        return (_in_format_of(input, input), *statistics)
    found = decomposition_table[torch.ops.aten.native_group_norm.default](
        input, weight, bias, batch, channels, pixels, groups, eps
    )
    if input.device.type != "cpu":
        return found
    return (_in_format_of(found[0], input), *(each.to(kept) for each in found[1:]))


def group_norm_backward(
    grad: torch.Tensor, input: torch.Tensor, mean: torch.Tensor, *rest: Any
) -> Any:
    """`aten.native_group_norm_backward`: the gradient of the input has the input's type."""
    found = decomposition_table[torch.ops.aten.native_group_norm_backward.default](
        grad, input, mean, *rest
    )
    if input.device.type != "cpu":
        return found
    kinds = (input.dtype, mean.dtype, mean.dtype)
    return tuple(
        None if each is None else each.to(kind) for each, kind in zip(found, kinds, strict=True)
    )


def pad_backward(grad: torch.Tensor, input: torch.Tensor, padding: Any) -> torch.Tensor:
    """Gradients of images that were padded with elements of theirs: on CPUs they lie as these."""
    found = input.new_empty(input.shape, dtype=grad.dtype)
    return _in_format_of(found, input) if input.device.type == "cpu" else found


def _in_format_of(result: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """A tensor like `result` in the memory format that is told of `input`."""
    told = suggest_memory_format(input)
    return torch.empty(result.shape, dtype=result.dtype, device=result.device, memory_format=told)


_BATCH_NORMS = (
    "aten.native_batch_norm.default",
    "aten._native_batch_norm_legit_no_training.default",
    "aten._native_batch_norm_legit_functional.default",
    "aten._native_batch_norm_legit.no_stats",
)
_PADS = tuple(
    f"aten.{kind}_pad{rank}d_backward.default"
    for kind in ("reflection", "replication")
    for rank in (2, 3)
)
KERNELS: dict[str, Kernel] = {
    **dict.fromkeys(("aten.copysign.Tensor", "aten.xlogy.Tensor"), torch.atan2),
    **dict.fromkeys(("aten.logaddexp.default", "aten.logaddexp2.default"), torch.add),
    **dict.fromkeys((f"aten.logical_{name}.default" for name in ("and", "or", "xor")), torch.eq),
    **dict.fromkeys(("aten.floor_divide.default", "aten.div.Tensor_mode"), divided),
    "aten.heaviside.default": heaviside,
    **dict.fromkeys(("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor"), index_fill),
    "aten.pow.Scalar": power_of_number,
    "aten.log_sigmoid_forward.default": log_sigmoid,
    **dict.fromkeys((f"aten.isin.{of}" for of in ("Tensor_Tensor", "Tensor_Scalar")), is_in),
    "aten.channel_shuffle.default": channel_shuffle,
    **{name: normalized(name) for name in _BATCH_NORMS},
    **dict.fromkeys(_PADS, pad_backward),
    "aten.native_group_norm.default": group_norm,
    "aten.native_group_norm_backward.default": group_norm_backward,
}
"""By the operator's name."""
