"""Products of thin matrices, which memory bounds, in forms that read and write less.

What gains depends on the device: a limit is given for each kind that does, by measurements of one
core of a CPU and an H100.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from plait_fx_passes.layouts import surely_equal, traced_numel, traced_size
from plait_fx_passes.patterns.matching import Match
from plait_fx_passes.patterns.rewriting import RewriteRule
from plait_utils import dataclass

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Thin:
    """Which products gain on a kind of device.

    Attributes:
        inner: up to how many products each sum is of.
        results: from how many elements of the result on.
    """

    inner: int
    results: int


SUMS: Mapping[str, Thin] = MappingProxyType(
    {
        # Two of 2048 by 4 by 2048 take 7.5 ms instead of 30.5 (one added to the other 16.6), of
        # 1024 by 16 by 1024 1.1 instead of 2.3 (1.2), of 512 by 512 by 512 6.6 and 6.9 (6.4).
        "cpu": Thin(inner=32, results=1 << 18),
    }
)
"""Of GPUs none: on an H100 two of 2048 by 8 by 2048 take 69 us either way by ATen's kernels, and in
a compiled program, whose product adds as it goes, 174 instead of 125."""

OUTER: Mapping[str, Thin] = MappingProxyType(
    {
        # A column and a row of 1024 take 64 us instead of 91.
        "cpu": Thin(inner=1, results=1 << 16),
    }
)
"""Of GPUs none: on an H100 a column and a row of 1024 take 23 us instead of 30 by ATen's kernels,
of 4096 44 instead of 30, and of 1024 in a compiled program 61 instead of 48."""

MATRICES: Mapping[str, int] = MappingProxyType({"cpu": 1 << 20})
"""Up to how many elements a matrix has that is multiplied with a vector in loops, by the type of a
device. On one core of a CPU, compiled, a matrix of 1024 by 1024 takes 55 us instead of 224 with a
column and 70 instead of 101 with a row; of 4096 by 4096 7.5 ms and 8.0, 6.0 and 3.9. ATen's kernels
would write all products to memory: 607 us instead of 273."""

LEAST_MATRIX = 1 << 12
"""Elements up to which a product is loops anyway."""


def _is_thin(match: Match, limits: Mapping[str, Thin], inner: int) -> bool:
    result = match.result
    limit = limits.get(result.device.type)
    if limit is None or traced_numel(result) < limit.results:
        return False
    return inner <= limit.inner


def _sum_of_products(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return aten.mm.default(a, b) + aten.mm.default(c, d)  # type: ignore[no-any-return]  # operators are untyped


def _product_of_joined(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return torch.mm(torch.cat([a, c], 1), torch.cat([b, d], 0))


def _is_thin_sum(limits: Mapping[str, Thin], match: Match) -> bool:
    """Products of one size and dtype that share no factor, whose sums are short."""
    a, b, c, d = (match.value(name) for name in "abcd")
    if not surely_equal([a.shape[0], b.shape[1]], [c.shape[0], d.shape[1]]):
        return False
    if len({each.dtype for each in (a, b, c, d)}) != 1 or not a.dtype.is_floating_point:
        return False
    return _is_thin(match, limits, traced_size(a.shape[1]) + traced_size(c.shape[1]))


def _outer(a: Tensor, b: Tensor) -> object:
    return aten.mm.default(a, b)


def _multiplied(a: Tensor, b: Tensor) -> Tensor:
    return a * b


def _is_outer(limits: Mapping[str, Thin], match: Match) -> bool:
    a, b = match.value("a"), match.value("b")
    inner = a.shape[1]
    is_one = type(inner) is int and inner == 1
    if not is_one or a.dtype != b.dtype or not a.dtype.is_floating_point:
        return False
    return _is_thin(match, limits, 1)


def _summed(a: Tensor, b: Tensor) -> Tensor:
    """The sums of one column, along rows as they lie, or of one row, down columns."""
    if b.shape[1] == 1:
        return (a * b.reshape(1, -1)).sum(1, keepdim=True)
    return (a.reshape(-1, 1) * b).sum(0, keepdim=True)


def _is_vector(limits: Mapping[str, int], least: int, match: Match) -> bool:
    """A matrix and a vector; of 16-bit floats, products are not to be rounded before the sum."""
    a, b = match.value("a"), match.value("b")
    rows, columns = a.shape[0], b.shape[1]
    is_one = (type(columns) is int and columns == 1) or (type(rows) is int and rows == 1)
    exact = a.dtype in (torch.float32, torch.float64)
    most = limits.get(a.device.type, 0)
    if not is_one or not exact or a.dtype != b.dtype:
        return False
    return least < max(traced_numel(a), traced_numel(b)) <= most


def thin_rules(
    sums: Mapping[str, Thin] = SUMS, outer: Mapping[str, Thin] = OUTER
) -> tuple[RewriteRule, ...]:
    """The rules, for products that are thin enough; limits are by the type of a device."""
    return (
        RewriteRule(
            "sum-of-products",
            _sum_of_products,
            _product_of_joined,
            partial(_is_thin_sum, sums),
            doc="a @ b + c @ d with few columns of a and c, as one product of these side by side",
        ),
        RewriteRule(
            "outer-product",
            _outer,
            _multiplied,
            partial(_is_outer, outer),
            doc="a column times a row, as the multiplication it is",
        ),
    )


THIN_RULES = thin_rules()


def vector_rules(
    most: Mapping[str, int] = MATRICES, least: int = LEAST_MATRIX
) -> tuple[RewriteRule, ...]:
    """The rule, for matrices of more than `least` elements and at most so many by device."""
    return (
        RewriteRule(
            "product-with-vector",
            _outer,
            _summed,
            partial(_is_vector, most, least),
            doc="a matrix times a column, or a row times a matrix, as a sum that loops can fuse",
        ),
    )


VECTOR_RULES = vector_rules()
