"""Whether hooks and functions of the user's compute gradients that are linear in those they get.

All formulas of autograd do; hooks and functions may do more, such as clip what they are given. Then
what comes to a tensor in parts is not what comes to it at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from enum import Enum, auto
from typing import TypeVar

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument
from torch.utils._pytree import tree_leaves

from plait_fx_passes.op_info import OpKind, op_info
from plait_utils.collectives import is_collective

Site = TypeVar("Site", bound=Hashable)

aten = torch.ops.aten


class _Kind(Enum):
    """How a value depends on the gradients of results."""

    ZERO = auto()
    """Not at all: it is 0."""
    CONSTANT = auto()
    LINEAR = auto()


_SUMS = frozenset(
    {
        *(aten.add.Tensor, aten.sub.Tensor, aten.rsub.Tensor, aten.cat.default),
        *(aten.stack.default, aten.slice_scatter.default, aten.select_scatter.default),
    }
)
"""Operators that are linear where all they are given is."""
_PRODUCTS = frozenset(
    {aten.mul.Tensor, aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default}
)
"""Operators that are linear in either argument."""
_OF_FIRST = frozenset(
    {
        *(aten.neg.default, aten.clone.default, aten.mul.Scalar, aten.div.Scalar, aten.div.Tensor),
        *(aten._to_copy.default, aten.sum.default, aten.sum.dim_IntList, aten.mean.default),
        *(aten.mean.dim, aten.cumsum.default, aten.flip.default, aten.roll.default),
        *(aten.index.Tensor, aten.index_select.default, aten.gather.default),
        *(aten.slice_backward.default, aten.select_backward.default, aten.copy.default),
        *(aten.view_as_complex.default, aten.view_as_real.default, aten.triu.default),
        *(aten.tril.default, aten._fft_r2c.default, aten._fft_c2c.default, aten._fft_c2r.default),
    }
)
"""Operators that are linear in the first argument."""
_ADDED = {aten.index_add.default: 3, aten.scatter_add.default: 3, aten.index_put.default: 2}
"""Operators that are linear in the first argument and that at the place together."""
_ZEROS = frozenset({aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default})
_FILLED = frozenset({aten.full.default, aten.full_like.default, aten.new_full.default})

_KEEP_ZEROS = frozenset(
    {aten.clone.default, aten._to_copy.default, aten.cat.default, aten.stack.default}
)
"""Operators that give zeros where all they are given are; views do, too, and what pads with 0."""


def bent_by(
    tangents: Iterable[fx.Node],
    gradients: Iterable[fx.Node],
    graph: fx.Graph,
    own: Mapping[fx.Node, Site],
) -> frozenset[Site]:
    """The hooks and functions whose gradients are not certainly linear in what they are given.

    Args:
        tangents: the placeholders of gradients.
        gradients: those that are computed.
        graph: a joint graph.
        own: the nodes that hooks and functions of the user's compute, with what tells these; all
            others are formulas of autograd.
    """
    kinds: dict[fx.Node, _Kind] = dict.fromkeys(tangents, _Kind.LINEAR)
    wanted = set(gradients)
    found: set[Site] = set()
    for node in graph.nodes:
        if node in kinds:
            continue
        kinds[node] = kind = _kind_of(node, kinds)
        if node not in own:
            continue
        if kind is _Kind.LINEAR:
            is_bent = not _is_linear(node, kinds)
        else:  # a gradient that is the same for all that are given
            others = any(own.get(user) != own[node] for user in node.users)
            is_new = kind is _Kind.CONSTANT and not node.meta.get("recomputed")
            is_bent = is_new and (others or node in wanted)
        if is_bent:
            found.add(own[node])
    return frozenset(found)


def _kind_of(node: fx.Node, kinds: Mapping[fx.Node, _Kind]) -> _Kind:
    """How a node depends on the tangents, if it is linear where it does."""
    found = {kinds[each] for each in node.all_input_nodes}
    if _is_zero(node) or (_keeps_zeros(node) and found == {_Kind.ZERO}):
        return _Kind.ZERO
    return _Kind.LINEAR if _Kind.LINEAR in found else _Kind.CONSTANT


def _is_zero(node: fx.Node) -> bool:
    return node.target in _ZEROS or (node.target in _FILLED and node.args[1] in (0, 0.0, False))


def _keeps_zeros(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    if target is aten.constant_pad_nd.default:
        value = node.args[2] if len(node.args) > 2 else 0
        return isinstance(value, int | float) and value == 0
    return target in _KEEP_ZEROS or op_info(target).kind is OpKind.VIEW


def _is_linear(node: fx.Node, kinds: Mapping[fx.Node, _Kind]) -> bool:
    def kind(argument: Argument) -> _Kind:
        if isinstance(argument, fx.Node):
            return kinds[argument]
        is_zero = isinstance(argument, int | float) and argument == 0
        return _Kind.ZERO if is_zero else _Kind.CONSTANT

    def varies(argument: Argument) -> bool:
        leaves = tree_leaves(argument)
        return any(isinstance(leaf, fx.Node) and kinds[leaf] is _Kind.LINEAR for leaf in leaves)

    target, args = node.target, node.args
    if not isinstance(target, OpOverload):
        return True  # an element of what is linear
    if any(map(varies, node.kwargs.values())):
        return False
    if target in _SUMS:
        parts = args[0] if isinstance(args[0], list | tuple) else args[:2]
        return all(kind(each) in (_Kind.LINEAR, _Kind.ZERO) for each in parts)
    if target in _ADDED:
        place = _ADDED[target]
        others = [each for n, each in enumerate(args) if n not in (0, place)]
        sums = (_Kind.LINEAR, _Kind.ZERO)
        return kind(args[0]) in sums and kind(args[place]) in sums and not any(map(varies, others))
    if target in _PRODUCTS:
        return sum(map(varies, args)) == 1
    if target is aten.convolution.default:
        return args[2] is None and sum(map(varies, args[:2])) == 1
    if target is aten.where.self:
        return not varies(args[0]) and _Kind.CONSTANT not in map(kind, args[1:])
    if target in (aten.masked_fill.Scalar, aten.constant_pad_nd.default):
        value = args[2] if len(args) > 2 else 0
        return not varies(args[1]) and kind(value) is _Kind.ZERO
    if is_collective(target):
        return _moves(target) or (_adds_up(target) and args[1] in ("sum", "avg"))
    if target in _OF_FIRST or op_info(target).kind is OpKind.VIEW or _is_formula(target):
        return not any(map(varies, args[1:]))
    return False


def _moves(collective: OpOverload) -> bool:
    """Whether a collective gives what processes have, or waits for that."""
    name = collective._schema.name.split("::")[1].removesuffix("_coalesced")
    return name in ("wait_tensor", "all_gather_into_tensor", "all_to_all_single", "broadcast")


def _adds_up(collective: OpOverload) -> bool:
    name = collective._schema.name.split("::")[1].removesuffix("_coalesced")
    return name in ("all_reduce", "reduce_scatter_tensor")


def _is_formula(target: OpOverload) -> bool:
    """Whether it is a formula of autograd, of the gradient that comes first."""
    return target.namespace == "aten" and target._schema.name.endswith("_backward")
