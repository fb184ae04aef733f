"""Operators over weights that oneDNN has packed.

A packed weight lies in memory as oneDNN's kernels read it, which no strides say, so compiled code
cannot take it. What it takes is the weight's number, in a tensor of one element: the weight is held
under that number for as long as the tensor is there.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

_Library: Any = torch.library.Library  # its methods have no types
_LIBRARY = _Library("plait_fx_passes", "FRAGMENT")
_LIBRARY.define("pack_product(Tensor weight, int rows) -> Tensor")
_LIBRARY.define("packed_product(Tensor input, Tensor packed, Tensor? bias, int columns) -> Tensor")
_LIBRARY.define(
    "pack_convolution(Tensor weight, int[] stride, int[] padding, int[] dilation, int groups,"
    " int[] size) -> Tensor"
)
_LIBRARY.define(
    "packed_convolution(Tensor input, Tensor packed, Tensor? bias, int[] weight_size,"
    " int[] stride, int[] padding, int[] dilation, int groups, bool channels_last)"
    " -> Tensor"
)
_LIBRARY.define(
    "pack_byte_convolution(Tensor weight, Tensor? zeros, int[] stride, int[] padding,"
    " int[] dilation, int groups, int zero, int[] size) -> Tensor"
)
_LIBRARY.define(
    "packed_byte_convolution(Tensor input, Tensor packed, int[] weight_size, int[] stride,"
    " int[] padding, int[] dilation, int groups, int zero, bool channels_last) -> Tensor"
)
_packed: dict[int, Tensor] = {}
_numbers = itertools.count(1)


def packed_count() -> int:
    """How many packed weights are held."""
    return len(_packed)


def _hold(weight: Tensor) -> Tensor:
    number = next(_numbers)
    _packed[number] = weight
    made = torch.tensor([number])
    weakref.finalize(made, _packed.pop, number, None)
    return made


def _pack_product(weight: Tensor, rows: int) -> Tensor:
    return _hold(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows))


def _packed_product(value: Tensor, packed: Tensor, bias: Tensor | None, columns: int) -> Tensor:
    weight = _packed[int(packed)]
    made: Tensor = torch.ops.mkldnn._linear_pointwise(value, weight, bias, "none", [], "")
    return made


def _pack_convolution(
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int],
) -> Tensor:
    reorder = torch.ops.mkldnn._reorder_convolution_weight
    return _hold(reorder(weight, padding, stride, dilation, groups, size))


def _packed_convolution(
    value: Tensor,
    packed: Tensor,
    bias: Tensor | None,
    weight_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    channels_last: bool,
) -> Tensor:
    weight = _packed[int(packed)]
    made: Tensor = torch.ops.mkldnn._convolution_pointwise(
        value, weight, bias, padding, stride, dilation, groups, "none", [], ""
    )
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return made.contiguous(memory_format=layout)


def _pack_byte_convolution(
    weight: Tensor,
    zeros: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    zero: int,
    size: Sequence[int],
) -> Tensor:
    """The weight less its zero points, as floats where these are no signed bytes."""
    centred = weight.to(torch.int32) - (0 if zeros is None else zeros.to(torch.int32))
    centred = centred.contiguous()
    if int(centred.min()) < -128 or int(centred.max()) > 127:
        return _hold(centred.float())
    prepack = torch.ops.onednn.qconv_prepack
    ones = torch.ones(weight.shape[0])
    how = stride, padding, dilation, groups, size
    return _hold(prepack(centred.to(torch.int8), ones, 1.0, zero, *how))


def _packed_byte_convolution(
    value: Tensor,
    packed: Tensor,
    weight_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    zero: int,
    channels_last: bool,
) -> Tensor:
    """The sums of products, of which int32 holds each, as floats."""
    weight = _packed[int(packed)]
    if weight.is_mkldnn:
        made = torch.ops.onednn.qconv2d_pointwise(
            *(value.contiguous(memory_format=torch.channels_last), 1.0, zero, weight),
            *(torch.ones(weight_size[0]), torch.zeros(weight_size[0], dtype=torch.int64), None),
            *(stride, padding, dilation, groups, 1.0, 0, torch.float32, "none", [], ""),
        )
    else:
        made = torch.ops.mkldnn._convolution_pointwise(
            *(value.float() - zero, weight, None, padding, stride, dilation, groups),
            *("none", [], ""),
        )
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return cast(Tensor, made.contiguous(memory_format=layout))


def _fake_pack(weight: Tensor, *_: object) -> Tensor:
    return weight.new_empty((1,), dtype=torch.int64)


def _fake_product(value: Tensor, packed: Tensor, bias: Tensor | None, columns: int) -> Tensor:
    return value.new_empty((*value.shape[:-1], columns))


def _fake_convolution(
    value: Tensor,
    packed: Tensor,
    bias: Tensor | None,
    weight_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    channels_last: bool,
) -> Tensor:
    sizes = [
        (size + 2 * pad - spread * (width - 1) - 1) // step + 1
        for size, width, step, pad, spread in zip(
            value.shape[2:], weight_size[2:], stride, padding, dilation, strict=True
        )
    ]
    layout = torch.channels_last if channels_last else torch.contiguous_format
    shape = (value.shape[0], weight_size[0], *sizes)
    return torch.empty(shape, dtype=value.dtype, device=value.device, memory_format=layout)


def _fake_byte_convolution(
    value: Tensor,
    packed: Tensor,
    weight_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    zero: int,
    channels_last: bool,
) -> Tensor:
    how = stride, padding, dilation, groups, channels_last
    return _fake_convolution(value, packed, None, weight_size, *how).float()


for _name, _run, _fake in (
    ("pack_product", _pack_product, _fake_pack),
    ("packed_product", _packed_product, _fake_product),
    ("pack_convolution", _pack_convolution, _fake_pack),
    ("packed_convolution", _packed_convolution, _fake_convolution),
    ("pack_byte_convolution", _pack_byte_convolution, _fake_pack),
    ("packed_byte_convolution", _packed_byte_convolution, _fake_byte_convolution),
):
    _LIBRARY.impl(_name, _run, "CPU")
    torch.library.register_fake(f"plait_fx_passes::{_name}", _fake, lib=_LIBRARY)

PACK_PRODUCT = torch.ops.plait_fx_passes.pack_product.default
PACKED_PRODUCT = torch.ops.plait_fx_passes.packed_product.default
PACK_CONVOLUTION = torch.ops.plait_fx_passes.pack_convolution.default
PACK_BYTE_CONVOLUTION = torch.ops.plait_fx_passes.pack_byte_convolution.default
PACKED_BYTE_CONVOLUTION = torch.ops.plait_fx_passes.packed_byte_convolution.default
PACKED_CONVOLUTION = torch.ops.plait_fx_passes.packed_convolution.default
