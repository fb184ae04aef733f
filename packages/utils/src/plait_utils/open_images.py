"""`interpolate` of images whose sizes may be symbolic, as torch makes it of its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from plait_utils.data_sizes import data_symbols

aten = torch.ops.aten


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """`torch.nn.functional.interpolate`."""
    kernel = _KERNELS.get((mode, input.dim() - 2, antialias))
    is_aligned = mode in _ALIGNED
    if kernel is None or (size is None) == (scale_factor is None):
        return NotImplemented
    if (align_corners is not None and not is_aligned) or (
        scale_factor is None and recompute_scale_factor
    ):
        return NotImplemented
    if not input.is_cpu and is_aligned and torch.are_deterministic_algorithms_enabled():
        return NotImplemented
    extents = input.shape[2:]
    given = _for_each(size if scale_factor is None else scale_factor, len(extents))
    if given is None:
        return NotImplemented
    scales: Sequence[Any] = [None] * len(extents)
    sizes = given
    if scale_factor is not None:
        sizes = [_scaled(extent, scale) for extent, scale in zip(extents, given, strict=True)]
        if not recompute_scale_factor and mode != "area":
            scales = given
    for each in sizes:
        if data_symbols(each):
            torch._check(each > 0)  # type: ignore[no-untyped-call]  # torch's
    if mode == "area":
        return kernel(input, sizes)
    return kernel(input, sizes, *[bool(align_corners)] * is_aligned, *scales)


def smooth_bilinear(
    input: Tensor, output_size: Any, align_corners: bool, scale_factors: Any = None
) -> Any:
    """`_upsample_bilinear2d_aa.vec`: sizes or scales, for both dimensions."""
    return _smooth("bilinear", input, output_size, align_corners, scale_factors)


def smooth_bicubic(
    input: Tensor, output_size: Any, align_corners: bool, scale_factors: Any = None
) -> Any:
    """`_upsample_bicubic2d_aa.vec`."""
    return _smooth("bicubic", input, output_size, align_corners, scale_factors)


def _smooth(mode: str, input: Tensor, output_size: Any, align_corners: bool, scales: Any) -> Any:
    if isinstance(scales, int | float):  # the overload that is given a scale for each dimension
        return NotImplemented
    return interpolate(input, output_size, scales, mode, align_corners, antialias=True)


def _for_each(value: Any, count: int) -> list[Any] | None:
    """One number for each dimension; None where that is not what is given."""
    found = list(value) if isinstance(value, list | tuple) else [value] * count
    numbers = (int, float, torch.SymInt, torch.SymFloat)
    fit = len(found) == count and all(isinstance(each, numbers) for each in found)
    return found if fit else None


def _scaled(extent: Any, scale: Any) -> Any:
    if isinstance(scale, int | float) and int(scale) == scale:
        return extent * int(scale)
    return torch.sym_int(extent * scale)  # type: ignore[no-untyped-call]  # torch's


_ALIGNED = ("linear", "bilinear", "trilinear", "bicubic")

_KERNELS: dict[tuple[str, int, bool], Any] = {
    ("nearest", 1, False): aten.upsample_nearest1d.default,
    ("nearest", 2, False): aten.upsample_nearest2d.default,
    ("nearest", 3, False): aten.upsample_nearest3d.default,
    ("nearest-exact", 1, False): aten._upsample_nearest_exact1d.default,
    ("nearest-exact", 2, False): aten._upsample_nearest_exact2d.default,
    ("nearest-exact", 3, False): aten._upsample_nearest_exact3d.default,
    ("linear", 1, False): aten.upsample_linear1d.default,
    ("bilinear", 2, False): aten.upsample_bilinear2d.default,
    ("trilinear", 3, False): aten.upsample_trilinear3d.default,
    ("bicubic", 2, False): aten.upsample_bicubic2d.default,
    ("bilinear", 2, True): aten._upsample_bilinear2d_aa.default,
    ("bicubic", 2, True): aten._upsample_bicubic2d_aa.default,
    ("area", 1, False): torch.nn.functional.adaptive_avg_pool1d,
    ("area", 2, False): torch.nn.functional.adaptive_avg_pool2d,
    ("area", 3, False): torch.nn.functional.adaptive_avg_pool3d,
}
"""By mode, how many dimensions are sized, and whether edges are smoothed."""
