"""Arithmetic on tensors of one value, done while compiling."""

from __future__ import annotations

from typing import cast

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.passes.base import Pass, PassContext, made_by
from plait_fx_passes.passes.noops import constant_of

aten = torch.ops.aten

# Exactly rounded, so that the value computed here is the value any kernel computes.
EXACT = frozenset(
    {
        aten.add.Tensor,
        aten.sub.Tensor,
        aten.mul.Tensor,
        aten.div.Tensor,
        aten.neg.default,
        aten.abs.default,
        aten.rsub.Scalar,
        aten.eq.Scalar,
        aten.ne.Scalar,
        aten.lt.Scalar,
        aten.le.Scalar,
        aten.gt.Scalar,
        aten.ge.Scalar,
        aten.eq.Tensor,
        aten.ne.Tensor,
        aten.lt.Tensor,
        aten.le.Tensor,
        aten.gt.Tensor,
        aten.ge.Tensor,
        aten.logical_not.default,
        aten.logical_and.default,
        aten.logical_or.default,
        aten.bitwise_not.default,
        aten.bitwise_and.Tensor,
        aten.bitwise_or.Tensor,
        aten.minimum.default,
        aten.maximum.default,
        aten.clamp.default,
        aten.where.self,
        aten._to_copy.default,
    }
)
REARRANGING = frozenset(
    {
        aten.view.default,
        aten.expand.default,
        aten.permute.default,
        aten.unsqueeze.default,
        aten.squeeze.dims,
        aten.slice.Tensor,
        aten.select.int,
        aten.clone.default,
    }
)

_DECIDED: dict[OpOverload, tuple[float, float, bool]] = {
    aten.mul.Tensor: (0, 0, False),
    aten.bitwise_and.Scalar: (0, 0, False),
    aten.bitwise_and.Tensor: (0, 0, False),
    aten.remainder.Scalar: (1, 0, False),
    aten.logical_and.default: (0, 0, True),
    aten.pow.Tensor_Scalar: (0, 1, True),
}
"""By operator: an operand that decides the result, this result, and whether it does so for floats,
too: 0 times infinity, or NaN, is NaN, but anything to the power of 0 is 1."""

_COMMUTATIVE = frozenset({aten.mul.Tensor, aten.bitwise_and.Tensor, aten.logical_and.default})

_WHOLE = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def _fold_constants(context: PassContext) -> None:
    for node in context.graph.nodes:
        if not node.users or node.op != "call_function" or not node.all_input_nodes:
            continue
        is_known = all(_is_uniform(each) for each in node.all_input_nodes)
        if not is_known and node.target not in _DECIDED:
            continue
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor) or not value.is_contiguous():
            continue
        number = _folded(node) if is_known else _decided(node)
        if number is not None:
            _replace_by_full(context, node, number)


def _decided(node: fx.Node) -> float | int | bool | None:
    """The value of every element, where one operand decides it; None where it does not."""
    dtype = node.meta["val"].dtype
    operand, result, whatever = _DECIDED[cast(OpOverload, node.target)]
    if len(node.args) != 2 or node.kwargs or dtype.is_complex:
        return None
    if dtype not in _WHOLE and not whatever:
        return None
    for each in node.args[:2] if node.target in _COMMUTATIVE else node.args[1:]:
        number = constant_of(each)
        if number is not None and number == operand:
            return bool(result) if dtype is torch.bool else result
    return None


def _is_uniform(node: fx.Node) -> bool:
    return (
        node.target is aten.full.default
        and isinstance(node.args[1], (int, float))
        and not node.meta["val"].is_complex()
    )


def _folded(node: fx.Node) -> float | int | bool | None:
    """The value of every element of the node's result; None if it is not known exactly."""
    if node.target in REARRANGING:
        return cast("float | int", node.all_input_nodes[0].args[1])
    if node.target not in EXACT or any(map(_is_open, (*node.args, *node.kwargs.values()))):
        return None

    def tensor_of(used: fx.Node) -> fx.node.Argument:
        scalar = torch.full((), cast(float, used.args[1]), dtype=used.meta["val"].dtype)
        # One-element tensors of the operands' ranks keep type promotion as it is.
        return cast(fx.node.Argument, scalar.reshape([1] * used.meta["val"].dim()))

    args, kwargs = fx.node.map_arg((node.args, node.kwargs), tensor_of)
    if "memory_format" in kwargs or kwargs.get("device", "cpu") not in ("cpu", torch.device("cpu")):
        return None
    result = cast(OpOverload, node.target)(*args, **kwargs)
    if result.dtype != node.meta["val"].dtype or result.is_complex():
        return None
    return cast("float | int | bool", result.item())


def _is_open(argument: object) -> bool:
    """Whether a number is another in other calls, which torch would compute with one of its own."""
    return isinstance(argument, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _replace_by_full(context: PassContext, node: fx.Node, number: float | int | bool) -> None:
    value = node.meta["val"]
    with context.graph.inserting_before(node):
        full = context.graph.create_node(
            "call_function",
            aten.full.default,
            (list(value.shape), number),
            {"dtype": value.dtype, "device": value.device},
            name="full",
        )
    full.meta = node.meta | made_by(context.running, node)
    context.replace(node, full)


FOLD_CONSTANTS = Pass(
    "constants", _fold_constants, "computes exactly rounded arithmetic on constant tensors"
)
