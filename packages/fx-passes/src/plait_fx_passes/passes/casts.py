"""Casts of what was cast without loss: one cast from what came first."""

from __future__ import annotations

from typing import cast

import torch
from torch import fx

from plait_fx_passes.layouts import same_strides
from plait_fx_passes.passes.base import Pass, PassContext

aten = torch.ops.aten

_INTEGER_BITS = {
    torch.bool: 1,
    torch.uint8: 8,
    torch.int8: 7,
    torch.int16: 15,
    torch.int32: 31,
    torch.int64: 63,
}
_SIGNED_BITS = {torch.uint8: 0, torch.bool: 0}
_PRECISION = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
_WIDER_FLOATS = {
    torch.float16: (torch.float32, torch.float64),
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float32: (torch.float64,),
}


def keeps_values(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether a cast changes no value, so that casts of its result are casts of its operand."""
    if source is target:
        return True
    if source in _WIDER_FLOATS:
        return target in _WIDER_FLOATS[source]
    bits = _INTEGER_BITS.get(source)
    if bits is None:
        return False
    if target in _PRECISION:
        # float16 ends at 65504, so its 11 bits hold all that they can count.
        return bits <= _PRECISION[target]
    is_wider = bits < _INTEGER_BITS.get(target, 0)
    return is_wider and (target not in _SIGNED_BITS or source in _SIGNED_BITS)


def _merge_casts(context: PassContext) -> None:
    for node in context.graph.nodes:
        if not _only_casts(node) or not node.users:
            continue
        inner = cast(fx.Node, node.args[0])
        if not _only_casts(inner):
            continue
        source = cast(fx.Node, inner.args[0])
        first, between, last = (each.meta["val"] for each in (source, inner, node))
        exact = keeps_values(first.dtype, between.dtype) and not overflows(first.dtype, last.dtype)
        if exact and context.fuel.take():
            node.replace_input_with(inner, source)
            context.rewrites += 1


def overflows(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether what a cast makes of values that the target lacks is up to the kernel."""
    return source.is_floating_point and target in _INTEGER_BITS and target is not torch.bool


def _only_casts(node: fx.Node) -> bool:
    """Whether a call changes nothing but the dtype."""
    if node.target is not aten._to_copy.default:
        return False
    value, source = node.meta["val"], cast(fx.Node, node.args[0]).meta["val"]
    return value.device == source.device and same_strides(value, source)


MERGE_CASTS = Pass("casts", _merge_casts, "casts once where the first of two casts loses nothing")
