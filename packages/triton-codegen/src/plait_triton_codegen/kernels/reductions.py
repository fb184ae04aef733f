"""How Triton combines the elements of a row, at once or block by block."""

from __future__ import annotations

from dataclasses import dataclass

from plait_ir_lowering import DType, ReductionKind
from plait_triton_codegen.errors import UnsupportedKernelError
from plait_triton_codegen.kernels.operations import TRITON_DTYPES, Kind, kind_of

_NAN = "propagate_nan=tl.PropagateNan.ALL"


@dataclass(frozen=True, slots=True)
class ReductionRule:
    """`{a}` is the accumulator, a block as wide as the row's blocks, `{v}` the next block."""

    identity: str
    dtype: str
    """The accumulator's element type."""
    accumulate: str
    finish: str
    """The row's result, one column wide."""
    position: str | None = None
    """For argmax and argmin, the function that keeps the better of two (value, position)."""


def reduction_rule(kind: ReductionKind, dtype: DType) -> ReductionRule:
    """The rule for a reduction of `dtype` elements. Raises UnsupportedKernelError."""
    wide = DType.f32 if dtype.is_reduced_precision else dtype
    name = TRITON_DTYPES.get(wide, "")
    numbers = kind_of(wide)
    if numbers is Kind.BOOL:
        return _of_bools(kind)
    zero, one = ("0.0", "1.0") if wide.is_float else ("0", "1")
    least, most = _extremes(wide)
    match kind:
        case ReductionKind.SUM:
            return ReductionRule(zero, name, "{a} + {v}", "tl.sum({a}, 1, keep_dims=True)")
        case ReductionKind.PROD:
            return ReductionRule(one, name, "{a} * {v}", "device.row_prod({a})")
        case ReductionKind.MAX:
            return ReductionRule(
                least, name, f"tl.maximum({{a}}, {{v}}, {_NAN})", "device.row_max({a})"
            )
        case ReductionKind.MIN:
            return ReductionRule(
                most, name, f"tl.minimum({{a}}, {{v}}, {_NAN})", "device.row_min({a})"
            )
        case ReductionKind.ARGMAX:
            return ReductionRule(least, name, "", "device.row_argmax({a}, {i})", "keep_larger")
        case ReductionKind.ARGMIN:
            return ReductionRule(most, name, "", "device.row_argmin({a}, {i})", "keep_smaller")
    raise UnsupportedKernelError(
        f"there is no Triton form of the reduction {kind.value} of {dtype}"
    )


def _of_bools(kind: ReductionKind) -> ReductionRule:
    match kind:
        case ReductionKind.ANY | ReductionKind.MAX | ReductionKind.SUM:
            return ReductionRule("0", "tl.int32", "{a} | {v}", "tl.max({a}, 1, keep_dims=True)")
        case ReductionKind.ALL | ReductionKind.MIN | ReductionKind.PROD:
            return ReductionRule("1", "tl.int32", "{a} & {v}", "tl.min({a}, 1, keep_dims=True)")
        case ReductionKind.ARGMAX:
            return ReductionRule("-1", "tl.int32", "", "device.row_argmax({a}, {i})", "keep_larger")
    return ReductionRule("2", "tl.int32", "", "device.row_argmin({a}, {i})", "keep_smaller")


def _extremes(dtype: DType) -> tuple[str, str]:
    if dtype.is_float:
        return 'float("-inf")', 'float("inf")'
    bits = dtype.itemsize * 8
    if dtype.is_signed:
        return str(-(1 << (bits - 1))), str((1 << (bits - 1)) - 1)
    return "0", str((1 << bits) - 1)
