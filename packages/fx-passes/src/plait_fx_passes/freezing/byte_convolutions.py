"""Convolutions of quantized images with frozen quantized weights, on bytes.

`conv((a - p) * s, (b - q) * t)` is `conv(a - p, b - q) * s * t` where each channel of the result
has one `t`: oneDNN adds products of bytes in int32, and the scales follow in the loop that adds the
bias and quantizes again. Where differences `b - q` are no bytes, they are multiplied as floats.
"""

from __future__ import annotations

from math import prod
from typing import cast

import torch
from torch import Tensor, fx

from plait_fx_passes.freezing.packed import PACK_BYTE_CONVOLUTION, PACKED_BYTE_CONVOLUTION
from plait_fx_passes.layouts import traced_size
from plait_fx_passes.passes.base import PassContext
from plait_fx_passes.passes.frozen import Constants
from plait_fx_passes.passes.packable import for_both, is_packable
from plait_fx_passes.quantized.affine import Affine, affine_of
from plait_fx_passes.quantized.integer_products import LONGEST, has_exact_kernel
from plait_fx_passes.quantized.recording import compute_instead

aten = torch.ops.aten


def packs_bytes(context: PassContext, constants: Constants, node: fx.Node) -> bool:
    """Replace a convolution of a quantized image by one of its bytes with packed ones."""
    image, kernel, bias = cast("tuple[fx.Node, fx.Node, fx.Node | None]", node.args[:3])
    stride, padding, dilation, transposed, _, groups = node.args[3:]
    value, weight, result = (each.meta["val"] for each in (image, kernel, node))
    if transposed or not is_packable(value, weight, result) or not _has_kernel(value, weight):
        return False
    left, right = _image(image), _weight(kernel, constants)
    if left is None or right is None:
        return False
    zero = int(cast("int | float", left.zero or 0))
    layout = _layout(result)
    if layout is None:
        return False
    size, shape = list(map(traced_size, value.shape)), list(weight.shape)
    how = (*(for_both(each) for each in (stride, padding, dilation)), groups)

    def compute(values: dict[fx.Node, Tensor]) -> Tensor:
        zeros = None if right.zero is None else _values(values, right, right.zero)
        packed = PACK_BYTE_CONVOLUTION(values[right.integers], zeros, *how, zero, size)
        last = layout is torch.channels_last
        made: Tensor = PACKED_BYTE_CONVOLUTION(
            values[left.integers], packed, shape, *how, zero, last
        )
        for scale in left.scales:
            made = made * _values(values, left, scale)
        for scale in right.scales:
            channels = _values(values, right, scale)
            made = made * (channels.reshape(-1, 1, 1) if channels.numel() > 1 else channels)
        return made if bias is None else made + values[bias].reshape(-1, 1, 1)

    added = () if bias is None else (bias,)
    inputs = tuple(dict.fromkeys((*left.nodes, *right.nodes, *added)))
    return compute_instead(context, node, inputs, compute)


def _has_kernel(value: Tensor, weight: Tensor) -> bool:
    known = value.dtype is torch.float32 and has_exact_kernel()
    return known and prod(weight.shape[1:]) <= LONGEST


def _image(node: fx.Node) -> Affine | None:
    """Unsigned bytes of an image, with one scale and a zero point that is known."""
    while node.target is aten.clone.default:
        node = cast(fx.Node, node.args[0])
    affine = affine_of(node)
    if affine is None or not all(map(affine.is_constant_along, (-1, -2, -3, -4))):
        return None
    if affine.integers.meta["val"].dtype is not torch.uint8 or isinstance(affine.zero, fx.Node):
        return None
    return affine if 0 <= (affine.zero or 0) <= 255 else None


def _weight(node: fx.Node, constants: Constants) -> Affine | None:
    """Frozen bytes, with a scale and zero point for each channel of the result."""
    while node.target is aten.clone.default:
        node = cast(fx.Node, node.args[0])
    affine = affine_of(node)
    if affine is None or not all(map(affine.is_constant_along, (-1, -2, -3))):
        return None
    return affine if all(each in constants for each in affine.nodes) else None


def _values(values: dict[fx.Node, Tensor], affine: Affine, parameter: object) -> Tensor:
    """A parameter as a tensor of as many dimensions as the image or weight, or of one element."""
    if isinstance(parameter, fx.Node):
        found = values[parameter]
        return found.reshape([]).float() if found.numel() == 1 else found.float()
    device = affine.integers.meta["val"].device
    return torch.full([], cast(float, parameter), dtype=torch.float32, device=device)


def _layout(result: Tensor) -> torch.memory_format | None:
    for layout in (torch.channels_last, torch.contiguous_format):
        if result.is_contiguous(memory_format=layout):
            return layout
    return None
