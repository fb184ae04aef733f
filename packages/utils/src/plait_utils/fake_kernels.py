"""Shapes of operators whose kernels in torch for tensors without data differ from the real ones,
or cost more."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch._refs
from torch._ops import OpOverload

from plait_utils.fake_floats import KERNELS as FLOATS
from plait_utils.fake_indexing import index
from plait_utils.fake_strides import KERNELS
from plait_utils.fake_transforms import KERNELS as TRANSFORMS

_ALIGNMENT = 16
"""Bytes to which `_grouped_mm` wants rows aligned."""
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`aten._grouped_mm`: torch's own takes no dtype but bfloat16, and pads no rows on CPUs."""
    for matrix in (mat_a, mat_b):
        _require(matrix.dtype in _DTYPES, "grouped_mm of another dtype")
        _require(matrix.dim() in (2, 3), "matrices have 2 or 3 dimensions")
        _check_strides(matrix)
    _require(mat_a.dtype == mat_b.dtype, "the matrices have different dtypes")
    batched = mat_a.dim() == 3, mat_b.dim() == 3
    _require((offs is None) == all(batched), "offsets are for 2-D matrices")
    _require(not any(batched) or mat_a.size(-1) == mat_b.size(-2), "the inner sizes differ")
    rows, columns = mat_a.size(-2), mat_b.size(-1)
    groups = None if offs is None else offs.size(0)
    for matrix in (mat_a, mat_b):
        if matrix.dim() == 3:
            _require(groups in (None, matrix.size(0)), "the batch sizes differ")
            groups = matrix.size(0)
    _require(not all(batched) or mat_a.size(0) == mat_b.size(0), "batch sizes differ")
    dtype = out_dtype or mat_a.dtype
    unit = _ALIGNMENT // dtype.itemsize
    padded = (columns + unit - 1) // unit * unit
    size, stride = [rows, columns], [padded, 1]
    if batched[0] == batched[1]:
        assert groups is not None
        size, stride = [groups, *size], [rows * padded, *stride]
    return torch.empty_strided(size, stride, dtype=dtype, device=mat_a.device)


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise RuntimeError(text)


def _check_strides(matrix: torch.Tensor) -> None:
    unit = _ALIGNMENT // matrix.element_size()
    (rows, columns), strides = matrix.shape[-2:], matrix.stride()[-2:]
    if strides[1] == 1 and strides[0] >= max(1, columns):
        aligned = strides[0] % unit == 0
    else:
        aligned = strides[0] == 1 and strides[1] >= max(1, rows) and strides[1] % unit == 0
    _require(aligned, "strides should be multiple of 16 bytes")


def number_as_tensor(
    number: float,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **layout: object,
) -> torch.Tensor:
    """`aten._to_copy` of a number: torch's own kernel computes its value and imports a compiler."""
    return torch.full((), number, dtype=dtype, device=device)


def _of_bools(reduce: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    _require(values.dtype is torch.bool, f"expected bools, not {values.dtype}")
    return reduce(values)


def unfolded_gradient(gradient: torch.Tensor, input_sizes: Any, *window: int) -> torch.Tensor:
    """`aten.unfold_backward`: of what was unfolded, which may have no dimensions."""
    return gradient.new_empty(input_sizes)


def vector_norm(
    values: torch.Tensor,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """`aten.linalg_vector_norm`: torch 2.11's own keeps dimensions of size 1 that are counted from
    the last."""
    if keepdim or dim is None or all(each >= 0 for each in dim):
        return NotImplemented
    counted = [each % max(values.dim(), 1) if each >= -values.dim() else each for each in dim]
    if counted == list(dim):
        return NotImplemented
    return torch.linalg.vector_norm(values, ord, counted, keepdim, dtype=dtype)


def attention_on_cpu(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """`aten._scaled_dot_product_flash_attention_for_cpu`: torch 2.11's own gives logarithms of sums
    of float32 for float64, too."""
    if query.dtype is not torch.float64:
        return NotImplemented
    batch, heads, rows = query.shape[:3]
    sums = torch.empty(batch, rows, heads, dtype=query.dtype, device=query.device)
    return torch.empty_like(query), sums.transpose(1, 2)


def _found(named: dict[str, Callable[..., Any]]) -> dict[OpOverload, Callable[..., Any]]:
    """Kernels by operator, of those that this torch has."""
    made = {}
    for name, kernel in named.items():
        try:
            made[operator.attrgetter(name)(torch.ops)] = kernel
        except AttributeError:
            continue
    return made


def _table() -> dict[OpOverload, Callable[..., Any]]:
    named: dict[str, Callable[..., Any]] = {
        "aten._grouped_mm.default": grouped_mm,
        # torch's own rule is this too, but without the mode: each step finds it from its arguments
        "aten.native_layer_norm.default": torch._refs.native_layer_norm,
        "aten.unfold_backward.default": unfolded_gradient,
        "aten.linalg_vector_norm.default": vector_norm,
        "aten._scaled_dot_product_flash_attention_for_cpu.default": attention_on_cpu,
        # kernels in C++ that ask for sizes, which where these are symbolic only Python knows
        "aten._is_all_true.default": functools.partial(_of_bools, torch.all),
        "aten._is_any_true.default": functools.partial(_of_bools, torch.any),
        **KERNELS,
        **FLOATS,
        **dict.fromkeys(("aten.index.Tensor", "aten._unsafe_index.Tensor"), index),
        **TRANSFORMS,
    }
    return _found(named)


_POLYNOMIALS = (
    *(f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"),
    *("hermite_polynomial_h", "hermite_polynomial_he"),
    *("laguerre_polynomial_l", "legendre_polynomial_p"),
)
OF_THE_SAME_SHAPE = _found(
    {
        f"aten.special_{name}.{overload}": torch.true_divide
        for name in _POLYNOMIALS
        for overload in ("default", "x_scalar", "n_scalar")
    }
)
"""What gives fake tensors of the same shapes, strides and dtypes as an operator whose own kernel
takes no symbolic sizes."""

OWN_KERNELS = _table()
"""What runs for an operator on fake tensors, under the mode; where it gives `NotImplemented`, what
torch has for it does."""


def add_fake_kernel(func: OpOverload, kernel: Callable[..., Any]) -> None:
    """Let an operator of a library's own run by `kernel` on fake tensors, under their mode.

    `torch.library.register_fake` says the same to torch, whose way to it imports its compiler.

    Raises:
        ValueError: it has a kernel already.
    """
    if func in OWN_KERNELS:
        raise ValueError(f"{func} has two kernels on fake tensors")
    OWN_KERNELS[func] = kernel
