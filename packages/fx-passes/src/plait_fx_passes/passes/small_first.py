"""Elementwise arithmetic where there is the least of it to do.

What is computed of a tensor of which parts are taken is computed of the parts, as where a table is
cast and rows of it looked up; what is computed of a tensor that was spread is computed before. Only
exactly rounded arithmetic moves: kernels may round a function otherwise for elements that lie
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.layouts import surely_equal
from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.calls import call_before
from plait_fx_passes.passes.constants import EXACT
from plait_fx_passes.passes.noops import same_tensor
from plait_fx_passes.passes.retargeting import reads_elements, retarget

aten = torch.ops.aten

_LESS = 2
"""How many times as many elements there must be for arithmetic to move away from them."""

# What takes elements of its first argument.
_TAKING = frozenset(
    {
        aten.slice.Tensor,
        aten.select.int,
        aten.index_select.default,
        aten.gather.default,
        aten.index.Tensor,
        aten.embedding.default,
    }
)

# What spreads elements, and what may stand between that and the arithmetic.
_SPREADING = frozenset(
    {
        aten.expand.default,
        aten.view.default,
        aten.permute.default,
        aten.unsqueeze.default,
        aten.squeeze.dims,
        aten.clone.default,
    }
)


def _numel(node: fx.Node) -> int | None:
    """How many elements there are, if that is known."""
    shape = node.meta["val"].shape
    return cast(int, shape.numel()) if all(type(size) is int for size in shape) else None


def _is_elementwise(node: fx.Node) -> bool:
    """Whether a call computes each element from the one of a tensor at its place, and numbers."""
    if node.target not in EXACT or not node.users or not node.args:
        return False
    source = node.args[0]
    if not isinstance(source, fx.Node) or any(_holds_node(each) for each in node.args[1:]):
        return False
    value, taken = node.meta["val"], source.meta["val"]
    is_one = not any(map(_holds_node, node.kwargs.values())) and "memory_format" not in node.kwargs
    return is_one and surely_equal(value.shape, taken.shape) and value.device == taken.device


def _holds_node(argument: object) -> bool:
    return isinstance(argument, fx.Node)


def _again(node: fx.Node) -> bool:
    return "recomputed" in node.meta


def _try(
    context: PassContext, make: Callable[[Callable[..., fx.Node]], fx.Node], node: fx.Node
) -> bool:
    """Let users of a node use what `make` makes of calls before it, if that is laid out alike."""
    made: list[fx.Node] = []

    def call(like: fx.Node, source: fx.Node) -> fx.Node:
        rest = (source, *like.args[1:])
        made.append(call_before(context, node, cast(OpOverload, like.target), rest, like.kwargs))
        return made[-1]

    try:
        result = make(call)
    except (RuntimeError, ValueError):
        result = None  # a view that needs other strides
    if result is not None and not (same_tensor(node, result) and context.replace(node, result)):
        users: Sequence[fx.Node] = list(node.users)
        if all(map(reads_elements, users)):
            for user in users:
                retarget(context, user, node, result)
    for each in reversed(made):
        if not each.users:
            context.graph.erase_node(each)
    return bool(made) and not node.users


def _before_spreading(context: PassContext, node: fx.Node) -> None:
    """Compute of what was spread, then spread it."""
    source = cast(fx.Node, node.args[0])
    between: list[fx.Node] = []
    spread = 0
    while source.target in _SPREADING and _again(source) == _again(node):
        if source.target is aten.clone.default and len(source.users) > 1:
            break  # it is needed as it is
        between.append(source)
        if source.target is aten.expand.default:
            spread = len(between)
        source = cast(fx.Node, source.args[0])
    if not spread:
        return
    del between[spread:]
    source = cast(fx.Node, between[-1].args[0])
    few, many = _numel(source), _numel(node)
    if few is None or many is None or few * _LESS > many or source.meta["val"].dim() == 0:
        return

    def make(call: Callable[..., fx.Node]) -> fx.Node:
        result = call(node, source)
        for each in reversed(between):
            result = call(each, result)
        return result

    _try(context, make, node)


def _behind_taking(context: PassContext, node: fx.Node) -> None:
    """Compute of what is taken, if all that is needed of the result is parts."""
    users, source = list(node.users), cast(fx.Node, node.args[0])
    for user in users:
        is_part = user.target in _TAKING and _again(user) == _again(node)
        if not is_part or user.args[0] is not node or _uses(user, node) != 1:
            return
    sizes, many = [_numel(user) for user in users], _numel(node)
    if many is None or None in sizes or sum(cast("list[int]", sizes)) * _LESS > many:
        return

    def make(call: Callable[..., fx.Node]) -> fx.Node:
        return call(node, call(part, source))

    for part in users:
        if _try(context, make, part):
            context.graph.erase_node(part)
    if not node.users:
        context.graph.erase_node(node)


def _uses(user: fx.Node, node: fx.Node) -> int:
    """How often a call takes a node."""
    found: list[fx.Node] = []
    fx.node.map_arg((user.args, user.kwargs), found.append)
    return sum(each is node for each in found)


def _move(context: PassContext) -> None:
    for node in list(context.graph.nodes):
        if _is_elementwise(node):
            _before_spreading(context, node)
    for node in reversed(list(context.graph.nodes)):
        if _is_elementwise(node):
            _behind_taking(context, node)


SMALL_FIRST = Pass(
    "small-first",
    _move,
    "casts and computes before tensors are spread, and after parts of them are taken",
)
