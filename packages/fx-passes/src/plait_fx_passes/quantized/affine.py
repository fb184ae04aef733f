"""Matrices that are computed from small integers: `(integers - zero points) * scales`.

This is how quantized values are written wherever they are computed with as floats: by the operators
of PT2E, which are taken apart, and in plain ATen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

import torch
from torch import Tensor, fx

from plait_fx_passes.layouts import surely_equal
from plait_utils import dataclass

aten = torch.ops.aten

Parameter: TypeAlias = fx.Node | int | float
"""A scale or zero point: a number, or a tensor that is spread over the integers."""

_BYTES = (torch.int8, torch.uint8)
_INTEGERS = (*_BYTES, torch.int16, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LEAST, _GREATEST = -128, 255
"""Between which zero points are taken to be: differences of bytes and these are whole numbers in
all of these floats, and products of the differences in int32."""


@dataclass(frozen=True, slots=True)
class Affine:
    """A tensor of bytes, what is subtracted of it, if anything, and what the difference is
    multiplied by.

    Attributes:
        integers: int8 or uint8.
        zero: whole numbers.
        scales: factors, the outermost first.
        between: the nodes that compute the matrix from the integers, `integers` not among them.
        shape: the sizes over which parameters are spread. The integers have as many elements;
            their last dimension may be the last two of these, where groups in it have scales.
    """

    integers: fx.Node
    zero: Parameter | None
    scales: tuple[Parameter, ...]
    between: tuple[fx.Node, ...]
    shape: Sequence[int | torch.SymInt]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The zero points, if there are any, and the scales."""
        return self.scales if self.zero is None else (self.zero, *self.scales)

    @property
    def nodes(self) -> list[fx.Node]:
        """The tensors that it is computed from."""
        return [self.integers, *(each for each in self.parameters if isinstance(each, fx.Node))]

    def is_constant_along(self, dim: int) -> bool:
        """Whether scales and zero points are the same all along a dimension, counted from the
        last one: -1, -2 and so on."""
        return all(_is_single(each, dim) for each in self.parameters)


def _is_single(parameter: Parameter, dim: int) -> bool:
    if not isinstance(parameter, fx.Node):
        return True
    shape = parameter.meta["val"].shape
    return len(shape) < -dim or (type(shape[dim]) is int and shape[dim] == 1)


def affine_of(node: fx.Node) -> Affine | None:
    """How the node's tensor is computed from bytes of the same sizes; None if it is not."""
    return _walk(node, node.meta["val"].shape, (), ())


def _walk(
    node: fx.Node,
    shape: Sequence[int | torch.SymInt],
    scales: tuple[Parameter, ...],
    seen: tuple[fx.Node, ...],
) -> Affine | None:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return None
    if node.target is aten.view.default and surely_equal(value.shape, shape):
        split = _split(node)
        if split is not None:
            return _walk(split, shape, scales, (*seen, node))
    is_split = not surely_equal(value.shape, shape)
    if value.dtype in _BYTES:
        return Affine(node, None, scales, seen, shape)
    if _keeps_numbers(node):
        return _walk(cast(fx.Node, node.args[0]), shape, scales, (*seen, node))
    if node.target is aten.sub.Tensor and not node.kwargs:
        return _less_zero(node, shape, scales, (*seen, node))
    if node.target is aten.mul.Tensor and not is_split and value.dtype in _FLOATS:
        for factor, scale in (node.args, node.args[::-1]):
            if _has_sizes(factor, shape) and _is_parameter(scale):
                scaled = (*scales, cast(Parameter, scale))
                found = _walk(cast(fx.Node, factor), shape, scaled, (*seen, node))
                if found is not None:
                    return found
    return None


def _keeps_numbers(node: fx.Node) -> bool:
    """Whether a node copies a tensor to a type that has its numbers, but for rounding scaled
    ones; not one that cuts off fractions, or keeps less than a byte holds."""
    if node.target is not aten._to_copy.default:
        return False
    before, after = (each.meta["val"].dtype for each in (cast(fx.Node, node.args[0]), node))
    if after in _FLOATS:
        return before in (*_FLOATS, *_INTEGERS)
    return after in _INTEGERS and before in _INTEGERS


def _split(node: fx.Node) -> fx.Node | None:
    """The matrix in whose rows a view makes groups."""
    source = cast(fx.Node, node.args[0])
    sizes, rows = source.meta["val"].shape, node.meta["val"].shape[:-2]
    return source if len(sizes) == 2 and surely_equal(sizes[:1], rows) else None


def _less_zero(
    node: fx.Node,
    shape: Sequence[int | torch.SymInt],
    scales: tuple[Parameter, ...],
    seen: tuple[fx.Node, ...],
) -> Affine | None:
    minuend, zero = node.args
    whole = _whole(zero)
    if isinstance(whole, fx.Node) and not surely_equal(node.meta["val"].shape, shape):
        return None
    if whole is None or not isinstance(minuend, fx.Node) or node.meta["val"].dtype in _BYTES:
        return None
    sizes = node.meta["val"].shape
    while minuend.meta["val"].dtype not in _BYTES and _keeps_numbers(minuend):
        seen, minuend = (*seen, minuend), cast(fx.Node, minuend.args[0])
    value = minuend.meta["val"]
    if value.dtype not in _BYTES or not surely_equal(value.shape, sizes):
        return None
    return Affine(minuend, whole, scales, seen, shape)


def _has_sizes(value: object, shape: Sequence[int | torch.SymInt]) -> bool:
    if not isinstance(value, fx.Node) or not isinstance(value.meta.get("val"), Tensor):
        return False
    return surely_equal(value.meta["val"].shape, shape)


def _is_parameter(value: object) -> bool:
    if isinstance(value, fx.Node):
        return isinstance(value.meta.get("val"), Tensor) and not value.meta["val"].is_complex()
    return type(value) in (int, float)


def _whole(zero: object) -> Parameter | None:
    """Zero points as whole numbers, also where they were made floats; None where they may not be
    whole."""
    if not isinstance(zero, fx.Node):
        if not isinstance(zero, int | float) or isinstance(zero, bool):
            return None
        return zero if zero == zero // 1 and _LEAST <= zero <= _GREATEST else None
    while zero.meta["val"].dtype not in _INTEGERS and _keeps_numbers(zero):
        zero = cast(fx.Node, zero.args[0])
    return zero if zero.meta["val"].dtype in _INTEGERS else None
