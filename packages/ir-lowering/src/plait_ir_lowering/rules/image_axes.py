"""The axes of an image that gets another size."""

from __future__ import annotations

from collections.abc import Sequence

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import ONE, IndexExpr, Var
from plait_ir_lowering.ir.values import IndexValue, Op, Value
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class ImageAxis:
    """One axis of an image: its sizes, and the scale that the caller gave."""

    place: IndexExpr
    """Where the result is."""
    before: IndexExpr
    after: IndexExpr
    scale: float | None

    @property
    def is_open(self) -> bool:
        return not (self.before.is_constant and self.after.is_constant)

    def step(self, align_corners: bool = False) -> float:
        """How far apart the sources of neighbours are. Raises OpenSizeError for open sizes."""
        if align_corners:
            after = self.after.as_int()
            return (self.before.as_int() - 1) / (after - 1) if after > 1 else 0.0
        if self.scale is not None and self.scale > 0:
            return 1.0 / self.scale
        return self.before.as_int() / self.after.as_int()

    def step_value(self, align_corners: bool, dtype: DType) -> Value:
        """The same as a value of an element type, of open sizes too."""
        has_scale = self.scale is not None and self.scale > 0 and not align_corners
        is_one = align_corners and self.after is ONE
        if has_scale or is_one or not self.is_open:
            return constant(self.step(align_corners), dtype)
        less = 1 if align_corners else 0
        sizes = [cast(IndexValue(size - less), dtype) for size in (self.before, self.after)]
        return Op("div", sizes)


def image_axes(
    ctx: LoweringContext, x: TensorExpr, scales: Sequence[float | None]
) -> tuple[tuple[Var, ...], list[ImageAxis]]:
    """The dimensions of the result, and the last of them, one for each of `scales`."""
    dims = dimensions(ctx.result.shape)
    first = len(dims) - len(scales)
    axes = []
    for dim, extent, scale in zip(dims[first:], x.shape[first:], scales, strict=True):
        axes.append(ImageAxis(dim.expr, extent, dim.extent, scale))
    return dims, axes
