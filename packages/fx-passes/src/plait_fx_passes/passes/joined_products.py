"""Products that write into parts of a concatenation, instead of being copied there.

`cat([a @ b, c @ d])` allocates the whole, and each product writes its part (`mm.out` into a slice).
For graphs that ATen's kernels run, since calls that write are not to be reordered any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.layouts import traced_numel
from plait_fx_passes.passes.base import Pass, PassContext, made_by
from plait_fx_passes.passes.calls import Calls
from plait_fx_passes.passes.noops import same_tensor

aten = torch.ops.aten

_INTO: Mapping[OpOverload, OpOverload] = {
    aten.mm.default: aten.mm.out,
    aten.addmm.default: aten.addmm.out,
    aten.bmm.default: aten.bmm.out,
    aten.baddbmm.default: aten.baddbmm.out,
}
"""Products, with what writes them where it is told to."""

LEAST_ELEMENTS: Mapping[str, int] = MappingProxyType({"cpu": 1 << 19})
"""How many elements a concatenation has at least, by the type of its device: slices cost more than
the copy of few. On one core of a CPU two products of 2048 by 16 by 2048 take 16 ms instead of 38,
of 64 by 64 by 64 22 us instead of 18. On GPUs none: on an H100 two of 2048 by 16 by 2048 in float32
take 62 us instead of 57."""


def joining(name: str, least: Mapping[str, int] = LEAST_ELEMENTS, doc: str = "") -> Pass:
    """A pass that joins products in place, where they have so many elements by device."""

    def rewrite(context: PassContext) -> None:
        for node in list(context.graph.nodes):
            if node.target is aten.cat.default and node.users and _is_large(node, least):
                _write_parts(context, name, node)

    return Pass(name, rewrite, doc)


def _is_large(node: fx.Node, least: Mapping[str, int]) -> bool:
    value = node.meta["val"]
    limit = least.get(value.device.type)
    return limit is not None and traced_numel(value) >= limit


def _is_product(part: fx.Node, joined: fx.Node) -> bool:
    """Whether nothing but the concatenation uses a part, and it is a product of its type."""
    value = part.meta["val"]
    alone = part.target in _INTO and len(part.users) == 1 and "in_place" not in part.meta
    return alone and value.dtype == joined.meta["val"].dtype and value.layout is torch.strided


def _write_parts(context: PassContext, name: str, node: fx.Node) -> None:
    """Let the users of a concatenation use memory that its products write to."""
    parts = cast("list[fx.Node]", node.args[0])
    value = node.meta["val"]
    if not parts or len(set(parts)) != len(parts):
        return
    if not all(_is_product(part, node) for part in parts):
        return
    if any(part.meta["val"].dim() != value.dim() for part in parts):
        return
    first = min(parts)
    dim = (cast(int, node.args[1]) if len(node.args) > 1 else 0) % value.dim()
    if any(type(part.meta["val"].shape[dim]) is not int for part in parts):
        return
    call = Calls(context, first, name)
    whole = call(
        aten.empty.memory_format, list(value.shape), dtype=value.dtype, device=value.device
    )
    if not same_tensor(node, whole) or not context.replace(node, whole):
        call.erase()
        return
    begin = 0
    for part in parts:
        size = part.meta["val"].shape[dim]
        _write_part(context, name, part, whole, (dim, begin, begin + size))
        begin += size
    context.graph.erase_node(node)
    for part in parts:
        context.graph.erase_node(part)
    context.matches[name] += 1


def _write_part(
    context: PassContext, name: str, part: fx.Node, whole: fx.Node, where: tuple[int, int, int]
) -> None:
    target = _INTO[cast(OpOverload, part.target)]
    place = Calls(context, part, name)(aten.slice.Tensor, whole, *where)
    with context.graph.inserting_before(part):
        written = context.graph.create_node(
            "call_function", target, part.args, {**part.kwargs, "out": place}
        )
    written.meta = {**part.meta, **made_by(name, part), "in_place": True}


PRODUCTS_IN_PARTS = joining(
    "products-in-parts",
    doc="writes products that are concatenated where they belong, for graphs that ATen runs",
)
