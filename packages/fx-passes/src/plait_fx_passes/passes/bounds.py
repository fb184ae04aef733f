"""What is known of the integers in a tensor from the operators that they come from."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

import torch
from torch import fx

aten = torch.ops.aten

Stop: TypeAlias = int | torch.SymInt
"""A number that all elements of a tensor are below, while none is negative."""

Rule = Callable[[fx.Node], Stop | None]

_FAR = 16
"""How many operators are looked through; no longer chain is followed, so the work stays linear."""

# Whose elements are some of their operand's.
_PASSING = frozenset(
    {
        aten.view.default,
        aten.expand.default,
        aten.permute.default,
        aten.unsqueeze.default,
        aten.squeeze.dims,
        aten.slice.Tensor,
        aten.select.int,
        aten.clone.default,
        aten.flip.default,
        aten.roll.default,
        aten.gather.default,
        aten.index_select.default,
    }
)


def stop_of(node: fx.Node) -> Stop | None:
    """A number that all elements of an integer tensor are below, where none is negative.

    None where that is not known.
    """
    for _ in range(_FAR):
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node):
            break
        if node.target is operator.getitem:
            rule = _PLACES.get(source.target)
            return rule(source) if rule is not None and node.args[1] == 1 else None
        if node.target is aten._to_copy.default and node.meta["val"].dtype is torch.int64:
            dtype = source.meta["val"].dtype
            if dtype is torch.bool:
                return 2
            if dtype.is_floating_point or dtype.is_complex:
                return None
        elif node.target not in _PASSING:
            break
        node = source
    rule = _STOPS.get(node.target)
    return rule(node) if rule is not None else None


def _size(node: fx.Node, dim: object) -> Stop | None:
    """The size of a dimension of a call's first operand; of all of it for None."""
    value = cast(fx.Node, node.args[0]).meta["val"]
    if dim is None:
        return cast(Stop, value.numel())
    return cast(Stop, value.shape[dim]) if type(dim) is int and value.dim() > 0 else None


def _along(position: int, default: int | None) -> Rule:
    """Places along the dimension that an argument names."""

    def rule(node: fx.Node) -> Stop | None:
        return _size(node, node.args[position] if len(node.args) > position else default)

    return rule


def _between(least: object, greatest: object) -> Stop | None:
    if type(least) is not int or type(greatest) is not int:
        return None
    return greatest + 1 if 0 <= least <= greatest else None


def _counted(node: fx.Node) -> Stop | None:
    start, end = node.args[0], node.args[1]
    step = node.args[2] if len(node.args) > 2 else 1
    if type(start) is not int or type(end) is not int or type(step) is not int:
        return None
    return _between(start, end - 1) if step > 0 else None


def _constant(node: fx.Node) -> Stop | None:
    return _between(node.args[1], node.args[1])


def _remainder(node: fx.Node) -> Stop | None:
    divisor = node.args[1]
    return divisor if type(divisor) is int and divisor > 0 else None


def _clamped(node: fx.Node) -> Stop | None:
    return _between(*node.args[1:3]) if len(node.args) == 3 else None


def _masked(node: fx.Node) -> Stop | None:
    mask = node.args[1]
    return _between(mask, mask)


_PLACES: Mapping[object, Rule] = {
    aten.max.dim: _along(1, None),
    aten.min.dim: _along(1, None),
    aten.topk.default: _along(2, -1),
    aten.sort.default: _along(1, -1),
    aten.kthvalue.default: _along(2, -1),
    aten.median.dim: _along(1, None),
    aten.mode.default: _along(1, -1),
}
"""Operators whose second result says where in a dimension the elements of their first lie."""

_STOPS: Mapping[object, Rule] = {
    aten.argmax.default: _along(1, None),
    aten.argmin.default: _along(1, None),
    aten.arange.start_step: _counted,
    aten.full.default: _constant,
    aten.remainder.Scalar: _remainder,
    aten.clamp.default: _clamped,
    aten.bitwise_and.Scalar: _masked,
}
