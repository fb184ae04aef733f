"""Rules the recorder runs in place of an operator to keep the graph's vocabulary small.

Each is a function with the operator's signature, run under the recorder; it may decline with
``NotImplemented``. These are not numerical decompositions: every rule computes what eager's own
kernel computes, in the operators that it computes it with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.layouts import is_dense, memory_order
from plait_fx_passes.record.foreach import foreach_rules
from plait_fx_passes.record.fused_optimizers import fused_optimizer_rules
from plait_fx_passes.record.gradient_scaling import unscale, update_scale
from plait_fx_passes.record.recurrent import gru, gru_cell, lstm_cell

aten = torch.ops.aten

Rule = Callable[..., object]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> object:
    """``linear`` over any leading dimensions is one ``addmm`` or ``mm`` over their product."""
    if input.dim() < 2 or weight.dim() != 2 or (bias is not None and bias.dim() != 1):
        return NotImplemented
    transposed = weight.t()
    rows = input if input.dim() == 2 else input.reshape(-1, input.shape[-1])
    product = rows.mm(transposed) if bias is None else torch.addmm(bias, rows, transposed)
    return product if input.dim() == 2 else product.view(*input.shape[:-1], weight.shape[0])


def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> object:
    """Batch norm with its update of the running statistics in the open."""
    if not training:
        return aten._native_batch_norm_legit_no_training.default(
            input, weight, bias, running_mean, running_var, momentum, eps
        )[0]
    if running_mean is None or running_var is None:
        return aten._native_batch_norm_legit.no_stats(input, weight, bias, True, momentum, eps)[0]
    results = aten._native_batch_norm_legit_functional.default(
        input, weight, bias, running_mean, running_var, True, momentum, eps
    )
    _update_statistics(running_mean, results[3])
    _update_statistics(running_var, results[4])
    return results[0]


def _update_statistics(running: Tensor, value: Tensor) -> None:
    """Write what a kernel writes whose schema does not say so: nobody counts that, and the
    backwards of earlier calls, which save the statistics and do not use them, may still run."""
    running.data.copy_(value)


def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> object:
    """The same for the operator itself, whose schema hides that it writes to its statistics."""
    if not training:
        return aten._native_batch_norm_legit_no_training.default(
            input, weight, bias, running_mean, running_var, momentum, eps
        )
    if running_mean is None or running_var is None:
        return aten._native_batch_norm_legit.no_stats(input, weight, bias, True, momentum, eps)
    results = aten._native_batch_norm_legit_functional.default(
        input, weight, bias, running_mean, running_var, True, momentum, eps
    )
    _update_statistics(running_mean, results[3])
    _update_statistics(running_var, results[4])
    return results[:3]


def native_batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: list[bool],
) -> object:
    """In training the running statistics are not asked for, so the backward does without."""
    if not train or running_mean is None:
        return NotImplemented
    return aten.native_batch_norm_backward.default(
        grad_out, input, weight, None, None, save_mean, save_invstd, train, eps, output_mask
    )


def scalar_overload(tensor_overload: OpOverload) -> Rule:
    """``add.Scalar`` and its kin are the tensor overload with a Python number."""

    def rule(input: Tensor, other: object, *rest: object, **kwargs: object) -> object:
        return tensor_overload(input, other, *rest, **kwargs)

    return rule


def filled(value: float | int | bool) -> Rule:
    """``zeros``, ``ones``, ``new_zeros``, ``zeros_like`` ... as ``full``."""

    def like(input: Tensor, **kwargs: Any) -> object:
        return filled_like(input, value, **kwargs)

    return like


def filled_like(
    input: Tensor,
    fill_value: float | int | bool,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> object:
    """A tensor of one value; only a contiguous one can be said without its model."""
    contiguous = memory_format is torch.contiguous_format or (
        memory_format in (None, torch.preserve_format) and _is_row_by_row(input)
    )
    if not contiguous or pin_memory or layout not in (None, torch.strided):
        return NotImplemented
    return _full(input.shape, fill_value, dtype or input.dtype, device or input.device)


def _is_row_by_row(input: Tensor) -> bool:
    """Whether the strides say so; those of a tensor without elements mean nothing."""
    if input._has_symbolic_sizes_strides or 0 not in input.shape:
        return input.is_contiguous()
    return input.stride() == torch.empty(input.shape, device="meta").stride()


def _full(
    size: torch.Size | list[int], value: object, dtype: torch.dtype, device: torch.device
) -> object:
    return aten.full.default(list(size), value, dtype=dtype, device=device)


def _created(value: float | int) -> Rule:
    def create(
        size: list[int],
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
    ) -> object:
        if pin_memory or layout not in (None, torch.strided):
            return NotImplemented
        return _full(
            size, value, dtype or torch.get_default_dtype(), device or torch.get_default_device()
        )

    return create


def _new(value: float | int | None) -> Rule:
    def create(
        input: Tensor,
        size: list[int],
        fill_value: object = None,
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
    ) -> object:
        if pin_memory or layout not in (None, torch.strided):
            return NotImplemented
        number = fill_value if value is None else value
        return _full(size, number, dtype or input.dtype, device or input.device)

    return create


def scalar_tensor(
    value: float | int | bool,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> object:
    """A tensor without dimensions is a full one too."""
    return _full([], value, dtype or torch.get_default_dtype(), device or torch.device("cpu"))


def full(size: list[int], fill_value: object, **kwargs: Any) -> object:
    """Says its dtype and its device, and nothing else."""
    if kwargs.keys() == {"dtype", "device"} and None not in kwargs.values():
        return NotImplemented
    if kwargs.get("pin_memory") or kwargs.get("layout") not in (None, torch.strided):
        return NotImplemented
    dtype = kwargs.get("dtype")
    if dtype is None and type(fill_value) in (bool, int, float):
        dtype = torch.tensor(fill_value).dtype
    if dtype is None:
        return NotImplemented
    return _full(size, fill_value, dtype, kwargs.get("device") or torch.get_default_device())


def fill(input: Tensor, value: float | int | bool) -> object:
    """``fill_`` keeps nothing of what it overwrites."""
    return filled_like(input, value)


def zero(input: Tensor) -> object:
    return filled_like(input, 0)


def to_copy(input: Tensor | float | int, **kwargs: Any) -> object:
    """A cast names what changes; callers also name the layout and device that do not.

    `torch.vmap` casts numbers that it calculates with: these are tensors without dimensions.
    """
    if not isinstance(input, Tensor):
        dtype = kwargs.get("dtype") or torch.tensor(input).dtype
        return _full([], input, dtype, kwargs.get("device") or torch.device("cpu"))
    same = {
        "dtype": input.dtype,
        "layout": input.layout,
        "device": input.device,
        "pin_memory": False,
        "non_blocking": False,
        "memory_format": torch.preserve_format,
    }
    changes = {
        name: value for name, value in kwargs.items() if value is not None and value != same[name]
    }
    return NotImplemented if changes == kwargs else aten._to_copy.default(input, **changes)


def bernoulli_in_place(
    input: Tensor, p: float = 0.5, *, generator: torch.Generator | None = None
) -> object:
    """Eager draws in the order of memory; the functional operator in that of indices."""
    if input.is_contiguous() or not is_dense(input) or generator is not None:
        return NotImplemented
    order = memory_order(input)
    inverse = [order.index(axis) for axis in range(input.dim())]
    drawn = aten.bernoulli.p(input.permute(order), p)
    return input.copy_(drawn.permute(inverse))


def arange_to(end: float | int, **kwargs: object) -> object:
    return aten.arange.start_step(0, end, 1, **kwargs)


def arange_between(start: float | int, end: float | int, **kwargs: object) -> object:
    return aten.arange.start_step(start, end, 1, **kwargs)


@lru_cache(maxsize=1)
def composite_rules() -> MappingProxyType[OpOverload, Rule]:
    """The table of rules, by overload."""
    rules: dict[OpOverload, Rule] = {
        **dict(foreach_rules()),
        **dict(fused_optimizer_rules()),
        aten._amp_foreach_non_finite_check_and_unscale_.default: unscale,
        aten._amp_update_scale_.default: update_scale,
        aten.linear.default: linear,
        aten.batch_norm.default: batch_norm,
        aten.native_batch_norm.default: native_batch_norm,
        aten.native_batch_norm_backward.default: native_batch_norm_backward,
        # Steps that write gates over products.
        aten.gru.input: gru,
        aten.gru_cell.default: gru_cell,
        aten.lstm_cell.default: lstm_cell,
        # Numbers stay Python numbers in the tensor overload.
        aten.add.Scalar: scalar_overload(aten.add.Tensor),
        aten.sub.Scalar: scalar_overload(aten.sub.Tensor),
        aten.mul.Scalar: scalar_overload(aten.mul.Tensor),
        aten.div.Scalar: scalar_overload(aten.div.Tensor),
        # Constant tensors have one constructor.
        aten.zeros.default: _created(0),
        aten._efficientzerotensor.default: _created(0),
        aten.ones.default: _created(1),
        aten.new_zeros.default: _new(0),
        aten.new_ones.default: _new(1),
        aten.new_full.default: _new(None),
        aten.full.default: full,
        aten.zeros_like.default: filled(0),
        aten.ones_like.default: filled(1),
        aten.full_like.default: filled_like,
        aten.scalar_tensor.default: scalar_tensor,
        aten.fill.Scalar: fill,
        aten.zero.default: zero,
        aten._to_copy.default: to_copy,
        aten.bernoulli_.float: bernoulli_in_place,
        aten.arange.default: arange_to,
        aten.arange.start: arange_between,
    }
    return MappingProxyType(rules)
