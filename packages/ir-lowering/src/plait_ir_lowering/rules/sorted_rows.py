"""Sorts and top-k of short rows on GPUs, as kernels that hold rows in registers.

Elements are sorted as integers that hold their positions (`sorted_keys.py`), so equal elements
stay in order, and of these top-k takes the first. Which sorts become kernels, a table says.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from plait_ir_lowering.context import LoweringContext
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import SORTED, Sort
from plait_ir_lowering.ir.values import Local
from plait_ir_lowering.rules.sorted_keys import keys_of
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Up to which sizes kernels are taken."""

    sorted: int
    """Elements of rows that are sorted, and of which any number is taken."""
    chosen: tuple[tuple[int, int], ...]
    """How many elements are taken of rows of how many."""


LIMITS: Mapping[DType, Limits] = MappingProxyType(
    {
        DType.i32: Limits(1024, ((8, 4096), (64, 2048))),
        DType.i64: Limits(512, ((8, 4096), (64, 2048))),
    }
)
"""By the type of the keys, the sizes up to which an H200 takes less time than by ATen, of 64 to
65536 rows. Sorts: 1.7 times less of 1024 bfloat16 and 512 float32, from 2.7 to 50 times less of
shorter rows, 1.2 to 4 times more of longer ones. The largest 8 of 4096: 1.3 times less and more, of
shorter rows 2 to 18 times; the largest 64 of 2048: 1.1 times and more. Rows of 4096 keys are what
one program holds in registers."""


def sorted_rows(
    ctx: LoweringContext, x: TensorExpr, axis: int, kept: int | None, *, descending: bool
) -> tuple[TensorExpr, ...] | None:
    """The elements of `x` along `axis` in order, all or the first `kept`, and their positions.

    None where that is not for a kernel.
    """
    on_gpu = ctx.result.device.type == "cuda"
    if not on_gpu or not ctx.options.sort_kernels or ctx.options.exact:
        return None
    along = axis + len(x.dims) if axis < 0 else axis
    extent = x.shape[along] if x.dims else None
    if extent is None or not extent.is_constant or not _is_taken(extent.as_int(), kept, x.dtype):
        return None
    keys = keys_of(x.dtype, extent.as_int(), descending=descending)
    assert keys is not None, "only rows that have keys are taken"
    dims = dimensions(x.shape)
    places = [dim.expr for dim in dims]
    value = keys.key(x.at(places), places[along])
    key = Local(SORTED, keys.dtype)
    results = (keys.element_of(key), keys.position_of(key))
    return tuple(
        ctx.define(Sort(dims, dims[along], value, result), like)
        for result, like in zip(results, ctx.results, strict=True)
    )


def _is_taken(length: int, kept: int | None, element: DType) -> bool:
    keys = keys_of(element, length, descending=False)
    if keys is None or not length or kept == 0:
        return False
    limits = LIMITS[keys.dtype]
    if length <= limits.sorted:
        return True
    return kept is not None and any(kept <= k and length <= n for k, n in limits.chosen)
