"""Constants written where an index says, as comparisons with the index.

Loops compare as they go, and need neither a tensor to write to nor to write twice. Eager raises for
an index out of bounds, so the rules ask that bounds be known: places of a largest element, say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from plait_fx_passes.layouts import surely_equal
from plait_fx_passes.passes.bounds import Stop, stop_of
from plait_fx_passes.patterns.expressions import Anything, Scalar
from plait_fx_passes.patterns.matching import Match
from plait_fx_passes.patterns.rewriting import RewriteRule

aten = torch.ops.aten


def _write(
    index: Tensor,
    size: Anything,
    fill: Anything,
    dtype: Anything,
    device: Anything,
    dim: Scalar,
    value: Anything,
) -> object:
    start = aten.full.default(size, fill, dtype=dtype, device=device)
    return aten.scatter.value(start, dim, index, value)


def _write_tensor(
    index: Tensor,
    size: Anything,
    fill: Anything,
    dtype: Anything,
    device: Anything,
    dim: Scalar,
    value: Anything,
    source_size: Anything,
) -> object:
    start = aten.full.default(size, fill, dtype=dtype, device=device)
    source = aten.full.default(source_size, value, dtype=dtype, device=device)
    return aten.scatter.src(start, dim, index, source)


def _compare(
    index: Tensor,
    size: Sequence[int],
    fill: float,
    dtype: torch.dtype,
    device: torch.device,
    dim: int,
    value: float,
    source_size: object = None,
) -> Tensor:
    one, other = (torch.full([], each, dtype=dtype, device=device) for each in (value, fill))
    return torch.where(_is_at(index, len(size), dim, size[dim]), one, other)


def _is_at(index: Tensor, rank: int, dim: int, size: int) -> Tensor:
    # Numbers of four bytes, as most of what is chosen has: loops take as many of both at a time.
    places = torch.arange(size, dtype=torch.int32, device=index.device)
    shape = [-1 if axis == dim % rank else 1 for axis in range(rank)]
    return places.view(shape) == index.to(torch.int32)


def _has_one_place(match: Match) -> bool:
    """One known place in each row of a tensor of as many, for a number that its dtype holds."""
    size, dim = match.bindings["size"], cast(int, match.bindings["dim"])
    index, result = match.value("index"), match.result
    if not isinstance(size, (list, tuple)) or index.dim() != result.dim() or not size:
        return False
    if any(type(extent) is not int for extent in size) or result.dtype.is_complex:
        return False
    wanted = [1 if axis == dim % len(size) else extent for axis, extent in enumerate(size)]
    if not surely_equal(index.shape, wanted) or not _is_below(match, size[dim]):
        return False
    numbers = match.bindings["fill"], match.bindings["value"]
    return all(_holds(result.dtype, number) for number in numbers)


def _is_below(match: Match, size: Stop) -> bool:
    stop = stop_of(match.node("index"))
    return type(stop) is int and type(size) is int and stop <= size < 2**31


def _holds(dtype: torch.dtype, number: object) -> bool:
    if dtype.is_floating_point:
        return isinstance(number, (int, float))
    return number in (0, 1) if dtype is torch.bool else type(number) is int


def _one_hot(index: Tensor, classes: Scalar) -> object:
    return aten.one_hot.default(index, classes)


def _compare_classes(index: Tensor, classes: int) -> Tensor:
    is_class = _is_at(index.unsqueeze(-1), index.dim() + 1, index.dim(), classes)
    return is_class.to(torch.int64)


def _knows_classes(match: Match) -> bool:
    classes = match.bindings["classes"]
    return type(classes) is int and classes > 0 and _is_below(match, classes)


SELECTION_RULES: tuple[RewriteRule, ...] = (
    RewriteRule(
        "scatter-of-constants",
        _write,
        _compare,
        _has_one_place,
        shared=True,
        doc="a number written into a constant at one place of each row",
    ),
    RewriteRule(
        "scatter-of-constant-tensors",
        _write_tensor,
        _compare,
        _has_one_place,
        shared=True,
        doc="the same where the number is a tensor of one value",
    ),
    RewriteRule(
        "one-hot",
        _one_hot,
        _compare_classes,
        _knows_classes,
        doc="classes that are known to be below their number",
    ),
)
