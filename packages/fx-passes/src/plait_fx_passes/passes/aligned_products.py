"""Room for kernels that want rows of a multiple of so many elements: products padded with zeros.

On GPUs products of 16-bit floats go without the copy engines that feed tensor cores where what
lies along rows of a factor, or of the result, is no multiple of 16 bytes: room behind rows is not
enough. Zeros beside the factors add nothing to a sum; rows and columns that they make are cut off.
On CPUs it is the scheduler that gives rows of products room, without a copy.
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
    name: str,
    alignments: Mapping[tuple[str, torch.dtype], Alignment] = ALIGNMENTS,
    doc: str = "",
    *,
    results: bool = True,
) -> Pass:
    """A pass that pads products, where that gains by device and dtype; with ``results`` off, no
    matrix that the program returns and whose factors need no room: kernels of one's own may write
    to rows of any length, where the padded product would be copied."""

    def rewrite(context: PassContext) -> None:
        padded: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = {}
        for node in list(context.graph.nodes):
            if node.target in _FACTORS and node.users:
                value = node.meta["val"]
                alignment = alignments.get((value.device.type, value.dtype))
                if alignment is None or not (results or _is_padded_within(node, alignment)):
                    continue
                _pad(context, name, node, alignment, padded)

    return Pass(name, rewrite, doc)


def _pad(
    context: PassContext,
    name: str,
    node: fx.Node,
    alignment: Alignment,
    padded: dict[tuple[fx.Node, tuple[int, ...]], fx.Node],
) -> None:
    """Let the users of a product use one of padded factors, where that is worth it.

    What earlier products had padded is in `padded`, and used again.
    """
    at = _FACTORS[node.target]
    left, right = cast("tuple[fx.Node, fx.Node]", node.args[at : at + 2])
    inner, columns = right.meta["val"].shape[-2:]
    rows = left.meta["val"].shape[-2]
    if type(inner) is not int or type(columns) is not int or not columns or not inner:
        return  # how much room there is to be depends on the call
    work = columns
    for size in left.meta["val"].shape:
        work *= traced_size(size)
    step = alignment.elements
    room_in, room_out = -inner % step, -columns % step
    # Where the first factor lies transposed, its rows are what lies along those of memory.
    room_down = -rows % step if type(rows) is int and _is_transposed(left) else 0
    if work < alignment.work or not (room_in or room_out or room_down):
        return
    call, before = Calls(context, node, name), dict(padded)
    left = _with_room(call, left, (room_in, room_down), padded)
    right = _with_room(call, right, (room_out, room_in), padded)
    added = cast("tuple[fx.Node, ...]", node.args[:at])
    added = tuple(_around(call, each, (rows, columns), (room_down, room_out)) for each in added)
    result = call(cast("torch._ops.OpOverload", node.target), *added, left, right, **node.kwargs)
    if room_out:
        result = call(aten.slice.Tensor, result, -1, 0, columns)
    if room_down:
        result = call(aten.slice.Tensor, result, -2, 0, rows)
    if room_out or room_down:
        result = call(aten.clone.default, result, memory_format=torch.contiguous_format)
    if same_tensor(node, result) and context.replace(node, result):
        context.matches[name] += 1
    else:
        call.erase()
        padded.clear()
        padded.update(before)


def _is_padded_within(node: fx.Node, alignment: Alignment) -> bool:
    """Whether a product is computed with, or one of its factors has no rows that begin well."""
    if node.target not in _MATRICES or not _is_returned(node):
        return True
    at = _FACTORS[node.target]
    return not all(
        _begins_well(factor, alignment.elements)
        for factor in cast("tuple[fx.Node, fx.Node]", node.args[at : at + 2])
    )


_MATRICES = frozenset((aten.mm.default, aten.addmm.default))
_VIEWS = frozenset((aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default))


def _is_returned(node: fx.Node) -> bool:
    """Whether a tensor, or a view of it with the same rows, is a result of the program."""
    return any(
        user.op == "output" or (user.target in _VIEWS and _is_returned(user)) for user in node.users
    )


def _begins_well(factor: fx.Node, step: int) -> bool:
    """Whether rows or columns of a matrix are contiguous, and begin at multiples of so many."""
    value = factor.meta["val"]
    if not all(type(each) is int for each in (*value.shape, *value.stride())):
        return False
    near, far = sorted(map(int, value.stride()))
    return near == 1 and far % step == 0


def _is_transposed(factor: fx.Node) -> bool:
    """Whether the rows of a matrix lie one beside the other in memory."""
    strides = factor.meta["val"].stride()[-2:]
    return type(strides[0]) is int and strides[0] == 1 and strides[1] != 1


def _with_room(
    call: Calls,
    factor: fx.Node,
    room: tuple[int, int],
    padded: dict[tuple[fx.Node, tuple[int, ...]], fx.Node],
) -> fx.Node:
    """A matrix with zeros behind its columns and below its rows; one that is another transposed is
    that other padded, and transposed."""
    if not any(room):
        return factor
    source = factor.args[0] if factor.target in _TRANSPOSITIONS else None
    if isinstance(source, fx.Node) and _is_transposed(factor):
        turned = _with_room(call, source, (room[1], room[0]), padded)
        return call(aten.transpose.int, turned, -2, -1)
    key = factor, room
    if key not in padded:
        pads = [0, room[0], 0, room[1]] if room[1] else [0, room[0]]
        padded[key] = call(aten.constant_pad_nd.default, factor, pads, 0)
    return padded[key]


_TRANSPOSITIONS = frozenset((aten.t.default, aten.transpose.int, aten.permute.default))
"""Views that may exchange the last two dimensions: such that do are seen by the strides."""


def _around(call: Calls, bias: fx.Node, size: tuple[object, int], room: tuple[int, int]) -> fx.Node:
    """What is added, with room behind its columns and below its rows if it has as many."""
    shape = bias.meta["val"].shape
    wider = room[1] if shape and not _is_spread(shape[-1], size[1]) else 0
    longer = room[0] if len(shape) > 1 and not _is_spread(shape[-2], size[0]) else 0
    if not wider and not longer:
        return bias
    pads = [0, wider, 0, longer] if longer else [0, wider]
    return call(aten.constant_pad_nd.default, bias, pads, 0)


def _is_spread(extent: object, wanted: object) -> bool:
    return type(extent) is int and extent != wanted


ALIGNED_PRODUCTS = aligning(
    "aligned-products",
    doc="pads large products of 16-bit floats on GPUs to rows of a multiple of 16 bytes",
)
"""Rounds as the kernel for these sizes does."""

ALIGNED_WITHIN = aligning(ALIGNED_PRODUCTS.name, doc=ALIGNED_PRODUCTS.doc, results=False)
"""The same, for back ends whose kernels write products to rows of any length."""
