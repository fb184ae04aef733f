"""Operators that return their argument: found by geometry, dtype and constants."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import fx

from plait_fx_passes.elements import held_as
from plait_fx_passes.layouts import surely_equal
from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.bounds import stop_of

aten = torch.ops.aten

# The node that computes the same, if the call changes nothing.
NoopRule = Callable[[fx.Node], fx.Node | None]


def same_tensor(node: fx.Node, other: fx.Node) -> bool:
    """Whether two nodes' values agree in shape, strides, dtype and device.

    Strides of dimensions of one element count: they decide how what is made of them lies.
    """
    left, right = node.meta["val"], other.meta["val"]
    return (
        isinstance(left, torch.Tensor)
        and isinstance(right, torch.Tensor)
        and left.dtype == right.dtype
        and left.device == right.device
        and surely_equal(left.shape, right.shape)
        and surely_equal(left.stride(), right.stride())
    )


def _moves_nothing(node: fx.Node) -> fx.Node | None:
    """A copy, cast or view that ends where it began: equal geometry means equal elements."""
    source = node.args[0]
    if isinstance(source, fx.Node) and same_tensor(node, source):
        return source
    return None


def _views_everything(node: fx.Node) -> fx.Node | None:
    """As above for a view that can start elsewhere in memory."""
    source = _moves_nothing(node)
    if source is None:
        return None
    offsets = node.meta["val"].storage_offset(), source.meta["val"].storage_offset()
    return source if offsets[0] == offsets[1] else None


# Views that begin where the tensor they look at begins.
_REARRANGING = frozenset(
    {
        aten.view.default,
        aten.expand.default,
        aten.permute.default,
        aten.unsqueeze.default,
        aten.squeeze.dims,
        aten.alias.default,
        aten.detach.default,
    }
)


def _returns_to_start(node: fx.Node) -> fx.Node | None:
    """A chain of views that ends where one of its links began, as a double transpose does.

    Such views begin at the same element, so equal sizes and strides mean equal tensors.
    """
    source = node
    while source.target in _REARRANGING:
        inner = source.args[0]
        assert isinstance(inner, fx.Node)
        source = inner
        if same_tensor(node, source):
            return source
    return None


def constant_of(argument: object) -> float | int | bool | None:
    """The number that an argument is: a Python number, or a ``full`` tensor of one value."""
    if isinstance(argument, (int, float)):
        return argument
    if isinstance(argument, fx.Node) and argument.target is aten.full.default:
        value, dtype = argument.args[1], argument.meta["val"].dtype
        return held_as(value, dtype) if isinstance(value, (int, float)) else None
    return None


def _neutral(neutral: Callable[[fx.Node, float], bool], *, commutes: bool) -> NoopRule:
    """A binary operator with a neutral element on the right (or either side)."""

    def rule(node: fx.Node) -> fx.Node | None:
        if node.kwargs or len(node.args) != 2:
            return None
        left, right = node.args
        pairs = [(left, right), (right, left)] if commutes else [(left, right)]
        for kept, other in pairs:
            number = constant_of(other)
            if (
                isinstance(kept, fx.Node)
                and number is not None
                and neutral(node, number)
                and same_tensor(node, kept)
            ):
                return kept
        return None

    return rule


def _is_one(node: fx.Node, number: float) -> bool:
    return number == 1


def _is_zero(node: fx.Node, number: float) -> bool:
    return number == 0


def _has_all_bits(node: fx.Node, number: float) -> bool:
    return number is True if node.meta["val"].dtype is torch.bool else number == -1


def _adds_nothing(node: fx.Node, number: float) -> bool:
    """Adding +0.0 turns -0.0 into +0.0: neutral is -0.0, and 0.0 for what never is -0.0."""
    if node.meta["val"].dtype.is_floating_point and math.copysign(1.0, number) > 0:
        return number == 0 and any(map(_has_no_negative_zero, node.all_input_nodes))
    return number == 0


# Whose results are at least +0.0, or NaN.
_NEVER_NEGATIVE = frozenset(
    {
        aten.abs.default,
        aten.exp.default,
        aten.exp2.default,
        aten.sigmoid.default,
        aten._softmax.default,
    }
)


def _has_no_negative_zero(node: fx.Node) -> bool:
    """Whether no element is -0.0: sums are that only where both terms are."""
    if node.target in _NEVER_NEGATIVE:
        return True
    if node.target is aten._to_copy.default:
        source = node.args[0]
        return isinstance(source, fx.Node) and _is_exact(source.meta["val"].dtype)
    if node.target is not aten.add.Tensor or node.kwargs:
        return False
    number = constant_of(node.args[1])
    return number is not None and (number != 0 or math.copysign(1.0, number) > 0)


def _is_exact(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


def _subtracts_nothing(node: fx.Node, number: float) -> bool:
    """``-0.0 - (+0.0)`` is ``-0.0``; subtracting -0.0 is adding +0.0."""
    if node.meta["val"].dtype.is_floating_point:
        return number == 0 and math.copysign(1.0, number) > 0
    return number == 0


def _divides_by_one(node: fx.Node) -> fx.Node | None:
    """A division of integers that rounds what is whole."""
    source, divisor = node.args[:2]
    if isinstance(source, fx.Node) and _is_exact(source.meta["val"].dtype):
        return _moves_nothing(node) if constant_of(divisor) == 1 else None
    return None


def _is_below_divisor(node: fx.Node) -> fx.Node | None:
    """A remainder of integers that are known to be less."""
    source, divisor = node.args
    if isinstance(source, fx.Node) and type(divisor) is int and _is_exact(node.meta["val"].dtype):
        stop = stop_of(source)
        return _moves_nothing(node) if type(stop) is int and stop <= divisor else None
    return None


def _chosen(node: fx.Node) -> fx.Node | None:
    """What a condition that is one constant chooses."""
    condition = constant_of(node.args[0])
    kept = node.args[1 if condition else 2]
    if condition is None or not isinstance(kept, fx.Node):
        return None
    return kept if same_tensor(node, kept) else None


def _cat_of_one(node: fx.Node) -> fx.Node | None:
    parts = node.args[0]
    if isinstance(parts, (list, tuple)) and len(parts) == 1:
        part = parts[0]
        if isinstance(part, fx.Node) and same_tensor(node, part):
            return part
    return None


def _overwritten(node: fx.Node) -> fx.Node | None:
    """A scatter whose source covers the whole tensor, or a copy over all of it."""
    source = node.args[1]
    return source if isinstance(source, fx.Node) and same_tensor(node, source) else None


def _rounds_integers(node: fx.Node) -> fx.Node | None:
    source = node.args[0]
    if isinstance(source, fx.Node) and not source.meta["val"].dtype.is_floating_point:
        return _moves_nothing(node)
    return None


def _all_zero(node: fx.Node) -> fx.Node | None:
    """A pad or roll by nothing."""
    amounts = node.args[1]
    if isinstance(amounts, (list, tuple)) and all(type(n) is int and n == 0 for n in amounts):
        return _moves_nothing(node)
    return None


def _flips_nothing(node: fx.Node) -> fx.Node | None:
    """A flip of no dimension, or of dimensions of one element."""
    source, dims = node.args
    if isinstance(source, fx.Node) and isinstance(dims, (list, tuple)):
        sizes = source.meta["val"].shape
        if not sizes or all(type(sizes[dim]) is int and sizes[dim] == 1 for dim in dims):
            return _moves_nothing(node)
    return None


def _read_back(scatter: torch._ops.OpOverload) -> NoopRule:
    """Reading exactly what was just written: ``slice(slice_scatter(x, v))`` is ``v``."""

    def rule(node: fx.Node) -> fx.Node | None:
        written = node.args[0]
        if isinstance(written, fx.Node) and written.target is scatter:
            value = written.args[1]
            if (
                list(written.args[2:]) == list(node.args[1:])
                and isinstance(value, fx.Node)
                and same_tensor(node, value)
            ):
                return value
        return _views_everything(node)

    return rule


RULES: dict[torch._ops.OpOverload, NoopRule] = {
    # Views of everything.
    aten.alias.default: _returns_to_start,
    aten.detach.default: _returns_to_start,
    aten.view.default: _returns_to_start,
    aten.expand.default: _returns_to_start,
    aten.permute.default: _returns_to_start,
    aten.unsqueeze.default: _returns_to_start,
    aten.squeeze.dims: _returns_to_start,
    aten.slice.Tensor: _read_back(aten.slice_scatter.default),
    aten.select.int: _read_back(aten.select_scatter.default),
    aten.diagonal.default: _read_back(aten.diagonal_scatter.default),
    aten.as_strided.default: _views_everything,
    # Copies that change neither dtype, device nor layout.
    aten.clone.default: _moves_nothing,
    aten._to_copy.default: _moves_nothing,
    aten.copy.default: _overwritten,
    aten.slice_scatter.default: _overwritten,
    aten.cat.default: _cat_of_one,
    aten.constant_pad_nd.default: _all_zero,
    aten.roll.default: _all_zero,
    aten.flip.default: _flips_nothing,
    # Integers are round.
    aten.round.default: _rounds_integers,
    aten.floor.default: _rounds_integers,
    aten.ceil.default: _rounds_integers,
    aten.trunc.default: _rounds_integers,
    # Divisions, remainders and choices whose outcome is known.
    aten.floor_divide.default: _divides_by_one,
    aten.div.Tensor_mode: _divides_by_one,
    aten.remainder.Scalar: _is_below_divisor,
    aten.where.self: _chosen,
    # Neutral elements.
    aten.bitwise_or.Scalar: _neutral(_is_zero, commutes=False),
    aten.bitwise_or.Tensor: _neutral(_is_zero, commutes=True),
    aten.bitwise_xor.Scalar: _neutral(_is_zero, commutes=False),
    aten.bitwise_xor.Tensor: _neutral(_is_zero, commutes=True),
    aten.bitwise_and.Scalar: _neutral(_has_all_bits, commutes=False),
    aten.bitwise_and.Tensor: _neutral(_has_all_bits, commutes=True),
    aten.__lshift__.Scalar: _neutral(_is_zero, commutes=False),
    aten.__rshift__.Scalar: _neutral(_is_zero, commutes=False),
    aten.bitwise_left_shift.Tensor_Scalar: _neutral(_is_zero, commutes=False),
    aten.bitwise_right_shift.Tensor_Scalar: _neutral(_is_zero, commutes=False),
    aten.mul.Tensor: _neutral(_is_one, commutes=True),
    aten.div.Tensor: _neutral(_is_one, commutes=False),
    aten.pow.Tensor_Scalar: _neutral(_is_one, commutes=False),
    aten.add.Tensor: _neutral(_adds_nothing, commutes=True),
    aten.sub.Tensor: _neutral(_subtracts_nothing, commutes=False),
}


def _remove_noops(context: PassContext) -> None:
    for node in context.graph.nodes:
        rule = RULES.get(node.target)
        if rule is None or not node.users:
            continue
        kept = rule(node)
        if kept is not None:
            context.replace(node, kept)


REMOVE_NOOPS = Pass(
    "no-ops", _remove_noops, "removes casts, copies, views and arithmetic that change nothing"
)
