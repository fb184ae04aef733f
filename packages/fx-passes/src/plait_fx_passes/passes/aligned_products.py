"""Room for kernels that want rows of a multiple of so many elements: products padded with zeros.

On GPUs products of 16-bit floats whose rows begin at no multiple of 16 bytes go without the copy
engines that feed tensor cores. Zeros beside the factors add nothing to a sum; columns that they
make are cut off. On CPUs it is the scheduler that gives rows of products room, without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

import torch
from torch import fx

from plait_fx_passes.layouts import traced_size
from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.calls import Calls
from plait_fx_passes.passes.noops import same_tensor
from plait_utils import dataclass

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Alignment:
    """What gains by padding on a kind of device.

    Attributes:
        elements: rows are made a multiple of so many long.
        work: multiplications from which on a product gains more than copies of its factors cost.
    """

    elements: int
    work: int


ALIGNMENTS: Mapping[tuple[str, torch.dtype], Alignment] = MappingProxyType(
    {
        # On an H100: products of 4095**3 take 329 us instead of 888 and of 2047**3 82 instead of
        # 108; of 1024 by 4097 by 1024 70 and 74, smaller ones lose, as does float32 in all sizes.
        ("cuda", torch.bfloat16): Alignment(8, 1 << 33),
        ("cuda", torch.float16): Alignment(8, 1 << 33),
    }
)
"""By the type of a device, and by dtype; others are left alone."""

_FACTORS: Mapping[object, int] = {aten.mm.default: 0, aten.addmm.default: 1, aten.bmm.default: 0}
"""Where the first factor is among a product's arguments."""


def aligning(
    name: str, alignments: Mapping[tuple[str, torch.dtype], Alignment] = ALIGNMENTS, doc: str = ""
) -> Pass:
    """A pass that pads products, where that gains by device and dtype."""

    def rewrite(context: PassContext) -> None:
        for node in list(context.graph.nodes):
            if node.target in _FACTORS and node.users:
                value = node.meta["val"]
                alignment = alignments.get((value.device.type, value.dtype))
                if alignment is not None:
                    _pad(context, name, node, alignment)

    return Pass(name, rewrite, doc)


def _pad(context: PassContext, name: str, node: fx.Node, alignment: Alignment) -> None:
    """Let the users of a product use one of padded factors, where that is worth it."""
    at = _FACTORS[node.target]
    left, right = cast("tuple[fx.Node, fx.Node]", node.args[at : at + 2])
    inner, columns = right.meta["val"].shape[-2:]
    if type(inner) is not int or type(columns) is not int or not columns or not inner:
        return  # how much room there is to be depends on the call
    work = columns
    for size in left.meta["val"].shape:
        work *= traced_size(size)
    room_in, room_out = -inner % alignment.elements, -columns % alignment.elements
    if work < alignment.work or not (room_in or room_out):
        return
    call = Calls(context, node, name)
    if room_in:
        left = call(aten.constant_pad_nd.default, left, [0, room_in], 0)
    right = call(aten.constant_pad_nd.default, right, [0, room_out, 0, room_in], 0)
    added = cast("tuple[fx.Node, ...]", node.args[:at])
    if room_out:
        added = tuple(_widened(call, each, columns, room_out) for each in added)
    result = call(cast("torch._ops.OpOverload", node.target), *added, left, right, **node.kwargs)
    if room_out:
        result = call(aten.slice.Tensor, result, -1, 0, columns)
        result = call(aten.clone.default, result, memory_format=torch.contiguous_format)
    if same_tensor(node, result) and context.replace(node, result):
        context.matches[name] += 1
    else:
        call.erase()


def _widened(call: Calls, bias: fx.Node, columns: int, room: int) -> fx.Node:
    """What is added, with room behind its columns if it has as many."""
    value = bias.meta["val"]
    if not value.dim() or (type(value.shape[-1]) is int and value.shape[-1] != columns):
        return bias
    return call(aten.constant_pad_nd.default, bias, [0, room], 0)


ALIGNED_PRODUCTS = aligning(
    "aligned-products",
    doc="pads large products of 16-bit floats on GPUs to rows of a multiple of 16 bytes",
)
"""Rounds as the kernel for these sizes does."""
