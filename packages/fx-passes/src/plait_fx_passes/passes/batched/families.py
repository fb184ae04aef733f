"""What kinds of calls are batched, and what the calls of a batch are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument

from plait_fx_passes.op_info import OpKind, op_info
from plait_fx_passes.passes.calls import Calls
from plait_fx_passes.passes.cleanup import value_key
from plait_utils import dataclass

aten = torch.ops.aten

Key = tuple[object, ...]
"""Calls of one key do the same to tensors of the same sizes."""


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of calls.

    Attributes:
        name: in reports.
        key: what calls of one batch agree in; None for a call that is not batched.
        write: makes a batch; each result, in the order of `results_of`, with the calls along its
            first dimension.
    """

    name: str
    key: Callable[[fx.Node], Key | None]
    write: Callable[[Calls, Sequence[fx.Node]], Sequence[fx.Node]]


def geometry(node: fx.Node) -> Key | None:
    """The sizes, strides, dtype and device of a tensor, symbolic sizes as expressions."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    sizes = tuple(value_key(each) for each in (*value.shape, *value.stride()))
    return (*sizes, value.dtype, value.device)


def stacked(call: Calls, nodes: Sequence[fx.Node]) -> fx.Node:
    """The tensors one behind the other along a new first dimension."""
    first = nodes[0]
    if all(each is first for each in nodes):
        value = first.meta["val"]
        return call(aten.expand.default, _unsqueezed(call, first), [len(nodes), *value.shape])
    if (batch := _batch_of(nodes)) is not None:
        return batch
    return call(aten.cat.default, [_unsqueezed(call, each) for each in nodes])


def _unsqueezed(call: Calls, node: fx.Node) -> fx.Node:
    return call(aten.unsqueeze.default, node, 0)


def _batch_of(nodes: Sequence[fx.Node]) -> fx.Node | None:
    """The batch whose elements the tensors are, all of them and in order."""
    source = nodes[0].args[0] if nodes[0].target is aten.select.int else None
    if not isinstance(source, fx.Node):
        return None
    count = source.meta["val"].shape[0]
    if type(count) is not int or count != len(nodes):
        return None
    for place, each in enumerate(nodes):
        if each.target is not aten.select.int or each.args != (source, 0, place):
            return None
    return source


# Products of matrices.


def _product_key(node: fx.Node) -> Key | None:
    if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return None
    operands = cast("tuple[fx.Node, ...]", node.args)
    if len(operands) == 3 and operands[0].meta["val"].dim() not in (1, 2):
        return None
    turned = tuple(map(_is_transpose, operands[-2:]))
    known = tuple(_core_geometry(each) for each in operands)
    return None if None in known else (node.target, known, turned, geometry(node))


def _core_geometry(node: fx.Node) -> Key | None:
    return geometry(cast(fx.Node, node.args[0]) if _is_transpose(node) else node)


def _is_transpose(node: fx.Node) -> bool:
    return node.target is aten.permute.default and node.args[1] == [1, 0]


def _write_products(call: Calls, nodes: Sequence[fx.Node]) -> Sequence[fx.Node]:
    operands = list(zip(*(cast("tuple[fx.Node, ...]", node.args) for node in nodes), strict=True))
    factors = [_stacked_matrices(call, each) for each in operands[-2:]]
    if len(operands) == 2:
        return (call(aten.bmm.default, *factors),)
    bias = stacked(call, operands[0])
    if bias.meta["val"].dim() == 2:
        bias = call(aten.unsqueeze.default, bias, 1)
    return (call(aten.baddbmm.default, bias, *factors),)


def _stacked_matrices(call: Calls, nodes: Sequence[fx.Node]) -> fx.Node:
    """Matrices one behind the other, transposed ones as they lie in memory."""
    if not _is_transpose(nodes[0]):
        return stacked(call, nodes)
    matrices = stacked(call, [cast(fx.Node, each.args[0]) for each in nodes])
    return call(aten.permute.default, matrices, [0, 2, 1])


# Elementwise calls.


_COPIES = frozenset({aten.clone.default, aten._to_copy.default, aten.copy.default})
"""Stacking would copy as they do."""


def _elementwise_key(node: fx.Node) -> Key | None:
    target = node.target
    if not isinstance(target, OpOverload) or torch.Tag.pointwise not in target.tags:
        return None
    if target in _COPIES or op_info(target).kind is not OpKind.FUNCTIONAL:
        return None
    operands = [each for each in node.args if isinstance(each, fx.Node)]
    if not operands or node.kwargs or len(operands) != len(node.all_input_nodes):
        return None
    result = node.meta["val"]
    if not isinstance(result, torch.Tensor) or not result.dim():
        return None
    shape = value_key(tuple(result.shape))
    if any(value_key(tuple(each.meta["val"].shape)) != shape for each in operands):
        return None  # it is spread
    known = tuple(geometry(each) for each in operands)
    rest = tuple(None if isinstance(each, fx.Node) else (value_key(each),) for each in node.args)
    return (target, known, rest, geometry(node))


def _write_elementwise(call: Calls, nodes: Sequence[fx.Node]) -> Sequence[fx.Node]:
    arguments: list[Argument] = []
    for place, first in enumerate(nodes[0].args):
        if isinstance(first, fx.Node):
            arguments.append(stacked(call, [cast(fx.Node, node.args[place]) for node in nodes]))
        else:
            arguments.append(first)
    return (call(cast(OpOverload, nodes[0].target), *arguments),)


# Layer norms.


def _norm_key(node: fx.Node) -> Key | None:
    if node.target is not aten.native_layer_norm.default or node.kwargs or len(node.args) != 5:
        return None
    values = cast("tuple[torch.Tensor, ...]", node.meta["val"])
    # Statistics of another dtype are those of a kernel that mixes types.
    if len({each.dtype for each in values}) != 1:
        return None
    known = tuple(geometry(each) for each in node.all_input_nodes)
    kinds = tuple(isinstance(each, fx.Node) for each in node.args)
    return (node.target, known, kinds, value_key(node.args[1]), value_key(node.args[4]))


def _write_norms(call: Calls, nodes: Sequence[fx.Node]) -> Sequence[fx.Node]:
    """Statistics of all, then the weights and biases of each."""
    first = nodes[0]
    x = stacked(call, [cast(fx.Node, node.args[0]) for node in nodes])
    sizes = cast("list[int]", first.args[1])
    norm = call(aten.native_layer_norm.default, x, sizes, None, None, first.args[4])
    result, mean, spread = (call.part(norm, place) for place in range(3))
    for place, op in ((2, aten.mul.Tensor), (3, aten.add.Tensor)):
        if first.args[place] is None:
            continue
        given = stacked(call, [cast(fx.Node, node.args[place]) for node in nodes])
        for _ in range(x.meta["val"].dim() - given.meta["val"].dim()):
            given = call(aten.unsqueeze.default, given, 1)
        result = call(op, result, given)
    return result, mean, spread


PRODUCTS = Family("products", _product_key, _write_products)
ELEMENTWISE = Family("elementwise", _elementwise_key, _write_elementwise)
NORMS = Family("layer-norms", _norm_key, _write_norms)
FAMILIES = (PRODUCTS, ELEMENTWISE, NORMS)
"""The first that has a key for a call."""
