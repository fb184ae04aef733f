"""Fake results of factorizations, sums of products and histograms with symbolic sizes, as torch's
kernels of the CPU lay them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import meta_table
from torch._ops import OpOverload

aten = torch.ops.aten


def geqrf(x: Tensor) -> tuple[Tensor, Tensor]:
    """Reflectors by columns, as LAPACK writes them, and their factors."""
    *batch, rows, columns = x.shape
    least = torch.sym_min(rows, columns)  # type: ignore[no-untyped-call]  # torch's
    factors = x.new_empty([*batch, least])
    return x.new_empty([*batch, columns, rows]).mT, factors


def histogram_with_edges(
    x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    return x.new_empty([bins.shape[0] - 1]), x.new_empty(bins.shape)


def histogram_of_count(
    x: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    return x.new_empty([bins]), x.new_empty([bins + 1])


def histogramdd_edges(x: Tensor, bins: Sequence[int], **rest: object) -> list[Tensor]:
    return [x.new_empty([count + 1]) for count in bins]


def histogramdd_of_counts(x: Tensor, bins: Sequence[int], **rest: object) -> Tensor:
    return x.new_empty(bins)


def histogramdd_with_edges(x: Tensor, bins: Sequence[Tensor], **rest: object) -> Tensor:
    return x.new_empty([each.shape[0] - 1 for each in bins])


_BY_TORCH = (
    aten.linalg_lu.default,
    aten.linalg_lu_factor_ex.default,
    aten.linalg_solve_triangular.default,
    aten.lu_unpack.default,
    aten.addbmm.default,
)
"""Operators of which torch has kernels in Python, but calls those in C++."""

LINALG_KERNELS: dict[OpOverload, Callable[..., Any]] = {
    **{func: meta_table[func] for func in _BY_TORCH if func in meta_table},
    aten.geqrf.default: geqrf,
    aten.histogram.bins_tensor: histogram_with_edges,
    aten.histogram.bin_ct: histogram_of_count,
    aten._histogramdd_bin_edges.default: histogramdd_edges,
    aten._histogramdd_from_bin_cts.default: histogramdd_of_counts,
    aten._histogramdd_from_bin_tensors.default: histogramdd_with_edges,
}
"""By operator; they run under the mode."""
