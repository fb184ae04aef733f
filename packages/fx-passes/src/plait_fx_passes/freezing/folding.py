"""Batch norms, and other scales and shifts by channel, folded into convolutions and products.

In evaluation a batch norm multiplies each channel by a number and adds one to it, both of which
follow from its parameters and statistics: `(x * w + b) * s + t` is `x * (w * s) + (b * s + t)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.layouts import surely_equal
from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.calls import Calls
from plait_fx_passes.passes.frozen import Constants
from plait_fx_passes.passes.noops import same_tensor
from plait_utils import dataclass

aten = torch.ops.aten

_DTYPES = frozenset({torch.float32, torch.float64})
"""Narrower weights would be rounded once more, by as much as they are precise."""

_SCALES = frozenset({aten.mul.Tensor, aten.div.Tensor})
_SHIFTS = frozenset({aten.add.Tensor, aten.sub.Tensor})
_TURNED = frozenset({aten.mul.Tensor, aten.add.Tensor})
"""Operators of a value and a constant that may also be written the other way round."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution or product with a constant weight, which nothing but a view of it uses.

    Attributes:
        node: the call.
        viewed: the call in another shape with the same channels, or the call itself.
        weight, bias: what is folded into.
        channel: the dimension of the result that has the channels.
        weight_channel: that of the weight.
    """

    node: fx.Node
    viewed: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    channel: int
    weight_channel: int

    @property
    def channels(self) -> int:
        return cast(int, self.weight.meta["val"].shape[self.weight_channel])


def _layer(node: fx.Node, constants: Constants) -> Layer | None:
    """The layer whose result a node is, if it is used nowhere else and its weight is constant."""
    inner = node
    if len(node.users) != 1:
        return None
    if node.target is aten.view.default:
        inner = cast(fx.Node, node.args[0])
        if len(inner.users) != 1 or inner.target is aten.convolution.default:
            return None
        if not surely_equal(inner.meta["val"].shape[-1:], node.meta["val"].shape[-1:]):
            return None
    read = _LAYERS.get(cast(OpOverload, inner.target))
    found = None if read is None or inner.kwargs else read(inner, node)
    if found is None or node.meta["val"].dtype not in _DTYPES:
        return None
    fixed = [found.weight, *([] if found.bias is None else [found.bias])]
    if not all(each in constants for each in fixed):
        return None
    return found


def _convolution(node: fx.Node, viewed: fx.Node) -> Layer | None:
    _, weight, bias, *_, transposed, _, groups = node.args
    if transposed and groups != 1:
        return None  # a weight has the channels of one group
    side = 1 if transposed else 0
    return Layer(node, viewed, cast(fx.Node, weight), cast("fx.Node | None", bias), 1, side)


def _product(node: fx.Node, viewed: fx.Node) -> Layer | None:
    bias = None
    if node.target is aten.addmm.default:
        bias = cast(fx.Node, node.args[0])
        if bias.meta["val"].dim() != 1:
            return None
    weight = cast(fx.Node, node.args[-1])
    return Layer(node, viewed, weight, bias, viewed.meta["val"].dim() - 1, 1)


_LAYERS: dict[OpOverload, Callable[[fx.Node, fx.Node], Layer | None]] = {
    aten.convolution.default: _convolution,
    aten.mm.default: _product,
    aten.addmm.default: _product,
}


def _fold(context: PassContext) -> None:
    if not context.aten.frozen:
        return
    constants = Constants(context.aten)
    for node in list(context.graph.nodes):
        if node.target not in _SCALES | _SHIFTS or node.kwargs or not node.users:
            continue
        pair = _layer_and_constant(node, constants)
        if pair is not None:
            _Folder(context, constants, node, pair[0]).fold(pair[1])


def _layer_and_constant(node: fx.Node, constants: Constants) -> tuple[Layer, fx.Node] | None:
    left, right = node.args
    for value, fixed in ((left, right), (right, left)):
        if not isinstance(value, fx.Node) or not isinstance(fixed, fx.Node):
            return None
        if fixed in constants and value not in constants:
            layer = _layer(value, constants)
            if layer is not None and _is_by_channel(fixed, node, layer):
                return layer, fixed
        if node.target not in _TURNED:
            break
    return None


def _is_by_channel(fixed: fx.Node, node: fx.Node, layer: Layer) -> bool:
    """Whether a constant has one number for each channel, and none else."""
    value, result = fixed.meta["val"], node.meta["val"]
    if value.dtype != result.dtype or value.dim() > result.dim():
        return False
    shape = [1] * (result.dim() - value.dim()) + list(value.shape)
    wanted = [1] * result.dim()
    wanted[layer.channel] = layer.channels
    return shape == wanted and same_tensor(node, layer.viewed)


class _Folder:
    """Writes one layer anew, with a scale or a shift in its weight and bias."""

    def __init__(
        self, context: PassContext, constants: Constants, node: fx.Node, layer: Layer
    ) -> None:
        self._context, self._constants = context, constants
        self._node, self._layer = node, layer
        self._calls = Calls(context, node, FOLD_BATCH_NORMS.name)

    def fold(self, fixed: fx.Node) -> None:
        """Let the users of the scaled or shifted value use the new layer."""
        layer, op = self._layer, cast(OpOverload, self._node.target)
        weight, bias = layer.weight, layer.bias
        numbers = self._call(aten.view.default, fixed, [layer.channels])
        if op in _SCALES:
            shape = [1] * weight.meta["val"].dim()
            shape[layer.weight_channel] = layer.channels
            weight = self._call(op, weight, self._call(aten.view.default, fixed, shape))
            bias = None if bias is None else self._call(op, bias, numbers)
        elif bias is not None:
            bias = self._call(op, bias, numbers)
        else:
            bias = numbers if op is aten.add.Tensor else self._call(aten.neg.default, numbers)
        result = self._written(weight, bias)
        old = layer.node
        if same_tensor(self._node, result) and self._context.replace(self._node, result):
            self._context.matches[FOLD_BATCH_NORMS.name] += 1
            for each in dict.fromkeys((self._node, layer.viewed, old)):
                self._context.graph.erase_node(each)
            return
        self._calls.erase()

    def _written(self, weight: fx.Node, bias: fx.Node | None) -> fx.Node:
        old, viewed = self._layer.node, self._layer.viewed
        if old.target is aten.convolution.default:
            return self._call(aten.convolution.default, old.args[0], weight, bias, *old.args[3:])
        factor = old.args[-2]
        if bias is None:
            made = self._call(aten.mm.default, factor, weight)
        else:
            made = self._call(aten.addmm.default, bias, factor, weight)
        return made if viewed is old else self._call(viewed.target, made, *viewed.args[1:])

    def _call(self, op: object, *args: fx.node.Argument) -> fx.Node:
        made = self._calls(cast(OpOverload, op), *args)
        self._constants.add(made)
        return made


FOLD_BATCH_NORMS = Pass(
    "fold-batch-norms",
    _fold,
    "scales and shifts of channels by frozen numbers go into the frozen weights before them",
)
"""Rounds the weight's products with the scale instead of the results'."""
