"""Heads of keys and values that several queries share, each repeated for these."""

from __future__ import annotations

import torch
from torch import fx

from plait_fx_passes.attention.calls import value_of
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class RepeatedHeads:
    """What ``heads``, of dimensions batch, head, row, column, is where each head is there
    ``times``, one behind the other."""

    heads: fx.Node
    times: int


def repeated_heads(node: fx.Node) -> RepeatedHeads | None:
    """The heads that are repeated by ``repeat_interleave`` along them, or by a dimension more that
    is expanded and then joined to theirs; None where it is neither."""
    value = value_of(node)
    if value is None or value.dim() != 4 or not all(isinstance(n, int) for n in value.shape):
        return None
    if node.target in (torch.repeat_interleave, "repeat_interleave"):
        dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim")
        return _of_heads(node.args[0], value) if dim in (1, -3) else None
    if node.target not in ("reshape", torch.reshape):
        return None
    expanded = node.args[0]
    wide = value_of(expanded)
    if wide is None or wide.dim() != 5 or wide.stride(2) != 0 or wide.shape[3:] != value.shape[2:]:
        return None
    assert isinstance(expanded, fx.Node)
    joins = wide.shape[0] == value.shape[0] and wide.shape[1] * wide.shape[2] == value.shape[1]
    if not joins or expanded.target not in ("expand", torch.broadcast_to):
        return None
    return _of_heads(_before_dimension(expanded.args[0]), value)


def _before_dimension(node: object) -> object:
    """What a dimension of size 1 is put into behind the heads."""
    if not isinstance(node, fx.Node):
        return None
    if node.target in ("unsqueeze", torch.unsqueeze):
        return node.args[0] if node.args[1:] in ((2,), (-3,)) else None
    index = node.args[1] if len(node.args) > 1 else None
    if getattr(node.target, "__name__", "") != "getitem" or not isinstance(index, tuple):
        return None
    is_whole = [each is None if n == 2 else each == slice(None) for n, each in enumerate(index)]
    return node.args[0] if len(index) > 2 and all(is_whole) else None


def _of_heads(node: object, repeated: torch.Tensor) -> RepeatedHeads | None:
    value = value_of(node)
    if value is None or value.dim() != 4 or not isinstance(node, fx.Node):
        return None
    count, rest = divmod(repeated.shape[1], max(int(value.shape[1]), 1))
    same = value.shape[0] == repeated.shape[0] and value.shape[2:] == repeated.shape[2:]
    return RepeatedHeads(node, count) if same and not rest and count > 1 else None
