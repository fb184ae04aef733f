"""Comparison of tensors: absolute, relative and ulp errors, and what differs first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plait_utils.records import dataclass

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far `actual` is from `expected`; errors are over elements finite in both."""

    max_abs: float
    max_rel: float
    special_mismatches: int
    """Elements of which just one is NaN, or that differ by an infinity."""
    first_mismatch: tuple[int, ...] | None
    """Index of the first special mismatch, or of the largest absolute error."""
    reason: str | None = None
    """Why the tensors cannot be compared: another shape or dtype."""

    def within(self, *, atol: float, rtol: float = 0.0) -> bool:
        """True where every element is within `atol` or within `rtol` of the expected."""
        if self.reason is not None or self.special_mismatches:
            return False
        return self.max_abs <= atol or self.max_rel <= rtol

    def __str__(self) -> str:
        if self.reason is not None:
            return self.reason
        text = f"largest error {self.max_abs:.3g} absolute, {self.max_rel:.3g} relative"
        if self.special_mismatches:
            text += f"; {self.special_mismatches} elements differ by NaN or infinity"
        return text + (f"; see index {self.first_mismatch}" if self.first_mismatch else "")


def compare(actual: torch.Tensor, expected: torch.Tensor) -> Comparison:
    """Compare two tensors of one shape and dtype, in float64 (complex128 if complex)."""
    import torch

    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        reason = (
            f"got {actual.dtype} {tuple(actual.shape)}, "
            f"expected {expected.dtype} {tuple(expected.shape)}"
        )
        return Comparison(float("inf"), float("inf"), 0, None, reason)
    wide = torch.complex128 if actual.is_complex() else torch.float64
    a, e = actual.detach().to(wide), expected.detach().to(wide)
    if a.numel() == 0:
        return Comparison(0.0, 0.0, 0, None)
    finite = torch.isfinite(a) & torch.isfinite(e)
    same_special = (a == e) | (torch.isnan(a) & torch.isnan(e))
    special = ~finite & ~same_special
    error = torch.where(finite, (a - e).abs(), torch.zeros((), dtype=torch.float64))
    relative = error / e.abs().clamp_min(torch.finfo(torch.float64).tiny)
    relative = torch.where(finite & (error > 0), relative, torch.zeros_like(error))
    mismatches = int(special.sum())
    where = special.to(torch.float64) if mismatches else error
    index = tuple(int(i) for i in torch.unravel_index(where.argmax(), where.shape))
    differs = mismatches > 0 or float(error.max()) > 0
    return Comparison(
        float(error.max()), float(relative.max()), mismatches, index if differs else None
    )


def ulp_distance(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Elementwise distance in units of `actual.dtype`'s spacing at the expected value.

    `expected` may be float64 for a narrower `actual`: then fractions of an ulp count.
    Both NaN, or both the same infinity, are distance 0; one NaN is infinity.
    """
    import torch

    wide_actual, wide_expected = actual.to(torch.float64), expected.to(torch.float64)
    info = torch.finfo(actual.dtype)
    exponent = torch.frexp(wide_expected.abs().clamp_min(info.tiny))[1].to(torch.float64) - 1
    spacing = torch.exp2(exponent) * info.eps
    distance = (wide_actual - wide_expected).abs() / spacing
    overflowed = wide_actual.isinf() & (wide_expected.abs() > info.max)
    same = (wide_actual == wide_expected) | (wide_actual.isnan() & wide_expected.isnan())
    distance = torch.where(same | overflowed, torch.zeros_like(distance), distance)
    return torch.where(distance.isnan(), torch.full_like(distance, float("inf")), distance)
