"""Frozen weights packed once, as oneDNN's kernels read them, and not in each call.

Weights of quantized images stay bytes (`byte_convolutions`). What follows is left to loops, also a
`relu`, of which oneDNN's kernels make zeros of NaNs.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import fx
from torch.fx.node import Argument

from plait_fx_passes.freezing.byte_convolutions import packs_bytes
from plait_fx_passes.freezing.packed import (
    PACK_CONVOLUTION,
    PACK_PRODUCT,
    PACKED_CONVOLUTION,
    PACKED_PRODUCT,
)
from plait_fx_passes.layouts import traced_size
from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.calls import call_before
from plait_fx_passes.passes.channels_last import ONEDNN, TAKES_ANY_ORDER, convolution_backend
from plait_fx_passes.passes.cleanup import DEAD_CODE
from plait_fx_passes.passes.frozen import Constants
from plait_fx_passes.passes.noops import same_tensor
from plait_fx_passes.passes.packable import (
    for_both,
    is_available,
    is_packable,
    is_plain,
    is_worth_packing,
)

aten = torch.ops.aten


def _pack(context: PassContext) -> None:
    if not context.aten.frozen or not is_available():
        return
    packer = _Packer(context)
    for node in list(context.graph.nodes):
        if not node.users:
            continue
        if node.target is aten.convolution.default:
            if packs_bytes(context, packer.constants, node):
                context.matches["pack-bytes"] += 1
            else:
                packer.convolution(node)
        elif node.target in (aten.mm.default, aten.addmm.default) and not node.kwargs:
            packer.product(node)
    if context.matches["pack-bytes"]:
        DEAD_CODE.rewrite(context)


class _Packer:
    """Replaces calls by calls with packed weights."""

    def __init__(self, context: PassContext) -> None:
        self._context = context
        self.constants = Constants(context.aten)
        self._packed: dict[tuple[object, ...], fx.Node] = {}
        """Weights that are packed already, by the weight and what they are packed for."""

    def product(self, node: fx.Node) -> None:
        """Replace a product of matrices with a frozen one at its right."""
        left, right = cast("tuple[fx.Node, fx.Node]", node.args[-2:])
        bias = cast(fx.Node, node.args[0]) if node.target is aten.addmm.default else None
        value, weight = left.meta["val"], right.meta["val"]
        if left in self.constants or not self._may_pack(right, weight):
            return
        if bias is not None and not _is_vector(bias):
            return
        if not is_worth_packing(value, weight.numel()):
            return
        rows = traced_size(value.shape[0])
        turned = self._turned(right)
        packed = self._of((right, rows), node, PACK_PRODUCT, turned, rows)
        self._replace(node, PACKED_PRODUCT, left, packed, bias, int(weight.shape[1]))

    def convolution(self, node: fx.Node) -> None:
        """Replace a convolution with a frozen weight."""
        image, kernel, bias = cast("tuple[fx.Node, fx.Node, fx.Node | None]", node.args[:3])
        geometry = node.args[3:]
        stride, padding, dilation, transposed, _, groups = geometry
        value, weight, result = (each.meta["val"] for each in (image, kernel, node))
        if transposed or not is_packable(value, weight, result):
            return
        if image in self.constants or not self._may_pack(kernel, weight):
            return
        if bias is not None and not _is_vector(bias):
            return
        backend = convolution_backend(value, weight, geometry)
        if backend not in TAKES_ANY_ORDER:
            return
        last = _lies(torch.channels_last, value, result)
        if not last and not _lies(torch.contiguous_format, value, result):
            return
        if not last and backend not in ONEDNN:
            return  # it takes such images as they are, and oneDNN's rearranges them
        size = list(map(traced_size, value.shape))
        how = (*map(for_both, (stride, padding, dilation)), groups)
        key = (kernel, str(how), *size)
        packed = self._of(key, node, PACK_CONVOLUTION, kernel, *how, size)
        shape = list(weight.shape)
        self._replace(node, PACKED_CONVOLUTION, image, packed, bias, shape, *how, last)

    def _may_pack(self, node: fx.Node, weight: torch.Tensor) -> bool:
        return node in self.constants and is_plain(weight)

    def _turned(self, right: fx.Node) -> fx.Node:
        """A product's right factor with its columns as rows."""
        if right.target is aten.permute.default and right.args[1] == [1, 0]:
            return cast(fx.Node, right.args[0])
        return self._made(right.next, aten.permute.default, right, [1, 0])

    def _of(
        self, key: tuple[object, ...], node: fx.Node, op: torch._ops.OpOverload, *args: Argument
    ) -> fx.Node:
        """A packed weight: one for all calls that take it alike."""
        if key not in self._packed:
            self._packed[key] = self._made(node, op, *args)
        return self._packed[key]

    def _replace(self, node: fx.Node, op: torch._ops.OpOverload, *args: Argument) -> None:
        made = self._made(node, op, *args)
        if same_tensor(node, made) and self._context.replace(node, made):
            self._context.matches[PACK_WEIGHTS.name] += 1
            self._context.graph.erase_node(node)
        else:
            self._context.graph.erase_node(made)

    def _made(self, node: fx.Node, op: torch._ops.OpOverload, *args: Argument) -> fx.Node:
        made = call_before(self._context, node, op, args)
        self.constants.add(made)
        return made


def _is_vector(node: fx.Node) -> bool:
    value = node.meta["val"]
    return bool(value.dim() == 1 and value.is_contiguous() and is_plain(value))


def _lies(layout: torch.memory_format, *values: torch.Tensor) -> bool:
    return all(each.is_contiguous(memory_format=layout) for each in values)


PACK_WEIGHTS = Pass(
    "pack-weights",
    _pack,
    "frozen weights of convolutions and products are packed once, as oneDNN reads them",
)
"""Rounds as oneDNN's kernels do, in another order than MKL's."""
