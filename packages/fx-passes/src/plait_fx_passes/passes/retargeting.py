"""Calls that may as well use another tensor of the same elements."""

from __future__ import annotations

import torch
from torch import fx

from plait_fx_passes.layouts import surely_equal
from plait_fx_passes.passes.base import PassContext
from plait_fx_passes.passes.constants import EXACT
from plait_fx_passes.verifier import recompute

aten = torch.ops.aten

_MOVING = frozenset(
    {
        *(
            aten.cat.default,
            aten.clone.default,
            aten._to_copy.default,
            aten.constant_pad_nd.default,
        ),
        *(aten.index_select.default, aten.gather.default, aten.index.Tensor, aten.flip.default),
    }
)


def reads_elements(user: fx.Node) -> bool:
    """Whether a call's result is a new tensor with the same bits however its operands lie.

    Kernels of functions that are not exactly rounded may compute other bits for other layouts.
    """
    return user.target in _MOVING or user.target in EXACT or user.target is aten.relu.default


def retarget(context: PassContext, user: fx.Node, node: fx.Node, other: fx.Node) -> None:
    """Let a call use another tensor of the same elements, if its result is laid out as before."""
    assert context.fake_mode is not None
    before = user.args, user.kwargs
    user.replace_input_with(node, other)
    try:
        value = recompute(context.fake_mode, user)
    except (RuntimeError, ValueError):
        value = None
    if _laid_out_alike(value, user.meta["val"]) and context.fuel.take():
        context.rewrites += 1
    else:
        user.args, user.kwargs = before


def _laid_out_alike(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return surely_equal(left.shape, right.shape) and surely_equal(left.stride(), right.stride())
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(_laid_out_alike, left, right))
    return False
