"""Whether gradients of inputs are linear in those of results.

All formulas of autograd are; hooks and functions of the user's may do more, such as clip what they
are given. Then what comes to a tensor in parts is not what comes to it at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto

import torch
from torch import fx
from torch._ops import OpOverload
from torch.autograd.function import BackwardCFunction
from torch.fx.node import Argument
from torch.utils._pytree import tree_leaves

from plait_fx_passes.op_info import OpKind, op_info
from plait_fx_passes.training.functions import nodes_behind

aten = torch.ops.aten


class _Kind(Enum):
    """How a value depends on the gradients of results."""

    ZERO = auto()
    """Not at all: it is 0."""
    CONSTANT = auto()
    LINEAR = auto()


_SUMS = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.cat.default, aten.stack.default})
"""Operators that are linear where all they are given is."""
_PRODUCTS = frozenset({aten.mul.Tensor, aten.mm.default, aten.bmm.default, aten.mv.default})
"""Operators that are linear in either argument."""
_OF_FIRST = frozenset(
    {
        *(aten.neg.default, aten.clone.default, aten.mul.Scalar, aten.div.Scalar, aten.div.Tensor),
        *(aten._to_copy.default, aten.sum.default, aten.sum.dim_IntList, aten.mean.default),
        *(aten.mean.dim, aten.cumsum.default, aten.flip.default, aten.roll.default),
        *(aten.index.Tensor, aten.index_select.default, aten.gather.default),
        *(aten.slice_backward.default, aten.select_backward.default, aten.copy.default),
        *(aten.view_as_complex.default, aten.view_as_real.default, aten.triu.default),
        aten.tril.default,
    }
)
"""Operators that are linear in the first argument."""
_ZEROS = frozenset({aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default})
_FILLED = frozenset({aten.full.default, aten.full_like.default, aten.new_full.default})


def has_own_backwards(results: Sequence[torch.Tensor], values: Mapping[fx.Node, object]) -> bool:
    """Whether functions or hooks of the user's have a part in the gradients of results.

    Args:
        results: what gradients are asked of.
        values: what the nodes of the program returned.
    """
    tensors = (leaf for value in values.values() for leaf in tree_leaves(value))
    if any(isinstance(each, torch.Tensor) and each._backward_hooks for each in tensors):
        return True
    return any(isinstance(node, BackwardCFunction) for node in nodes_behind(results))


def are_linear(tangents: Iterable[fx.Node], gradients: Iterable[fx.Node], graph: fx.Graph) -> bool:
    """Whether each of the gradients is certainly a linear function of the tangents."""
    kinds: dict[fx.Node, _Kind | None] = dict.fromkeys(tangents, _Kind.LINEAR)
    for node in graph.nodes:
        if node not in kinds:
            kinds[node] = _kind_of(node, kinds)
    return all(kinds[each] is not None for each in gradients)


def _kind_of(node: fx.Node, kinds: Mapping[fx.Node, _Kind | None]) -> _Kind | None:
    """How a node depends on the tangents; None where it may be in other ways."""
    found = [kinds[each] for each in node.all_input_nodes]
    if None in found:
        return None
    if _is_zero(node) or (_keeps_zeros(node) and set(found) == {_Kind.ZERO}):
        return _Kind.ZERO
    if _Kind.LINEAR not in found:
        return _Kind.CONSTANT
    return _Kind.LINEAR if _is_linear(node, kinds) else None


def _is_zero(node: fx.Node) -> bool:
    return node.target in _ZEROS or (node.target in _FILLED and node.args[1] in (0, 0.0, False))


def _keeps_zeros(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    return target in (aten.clone.default, aten._to_copy.default) or (
        op_info(target).kind is OpKind.VIEW
    )


def _is_linear(node: fx.Node, kinds: Mapping[fx.Node, _Kind | None]) -> bool:
    def kind(argument: Argument) -> _Kind | None:
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
    if target in _PRODUCTS:
        return sum(map(varies, args)) == 1
    if target is aten.where.self:
        return not varies(args[0]) and _Kind.CONSTANT not in map(kind, args[1:])
    if target in (aten.masked_fill.Scalar, aten.constant_pad_nd.default):
        value = args[2] if len(args) > 2 else 0
        return not varies(args[1]) and kind(value) is _Kind.ZERO
    if target in _OF_FIRST or op_info(target).kind is OpKind.VIEW or _is_formula(target):
        return not any(map(varies, args[1:]))
    return False


def _is_formula(target: OpOverload) -> bool:
    """Whether it is a formula of autograd, of the gradient that comes first."""
    return target.namespace == "aten" and target._schema.name.endswith("_backward")
