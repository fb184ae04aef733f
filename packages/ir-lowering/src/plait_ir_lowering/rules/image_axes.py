"""The axes of an image that gets another size."""

from __future__ import annotations

from collections.abc import Sequence

from plait_ir_lowering.context import LoweringContext
from plait_ir_lowering.ir.index import IndexExpr, Var
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class ImageAxis:
    """One axis of an image: its sizes, and the scale that the caller gave."""

    place: IndexExpr
    """Where the result is."""
    before: int
    after: int
    scale: float | None

    def step(self, align_corners: bool = False) -> float:
        """How far apart the sources of neighbours are."""
        if align_corners:
            return (self.before - 1) / (self.after - 1) if self.after > 1 else 0.0
        if self.scale is not None and self.scale > 0:
            return 1.0 / self.scale
        return self.before / self.after


def image_axes(
    ctx: LoweringContext, x: TensorExpr, scales: Sequence[float | None]
) -> tuple[tuple[Var, ...], list[ImageAxis]]:
    """The dimensions of the result, and the last of them, one for each of `scales`."""
    dims = dimensions(ctx.result.shape)
    first = len(dims) - len(scales)
    axes = []
    for dim, extent, scale in zip(dims[first:], x.shape[first:], scales, strict=True):
        axes.append(ImageAxis(dim.expr, extent.as_int(), dim.extent.as_int(), scale))
    return dims, axes
