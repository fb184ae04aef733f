"""Which calls become one: those of the same depth that are alike, within limits.

Calls of one depth, the length of the longest way from an input, do not depend on each other, nor do
batches of them make a circle. What has effects, as a random draw, counts as depending on what had
one before it. Batches are first put where the first of their calls was, and the graph is sorted at
the end.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import cast

import torch
from torch import fx

from plait_fx_passes.layouts import traced_numel
from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.batched.families import Family, Key
from plait_fx_passes.passes.calls import Calls
from plait_fx_passes.passes.cleanup import has_effects
from plait_fx_passes.passes.noops import same_tensor
from plait_fx_passes.passes.sorting import sort_calls
from plait_utils import dataclass

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Limits:
    """Which batches gain on a kind of device.

    Attributes:
        calls: how many calls at least, for each tensor that they take.
        most_calls: how many of them one batch has at most.
        elements: how many elements the largest tensor of each call has at most.
    """

    calls: int
    elements: int
    most_calls: int = 64


LIMITS: Mapping[str, Mapping[str, Limits]] = MappingProxyType(
    {
        "cuda": {
            # On an H100: 4 products of 512 by 512 in bfloat16 take 36 us instead of 55, 2 take 71
            # instead of 82, but 37 instead of 29 of 128 by 128.
            "products": Limits(calls=2, elements=1 << 18),
            # 4 of 256 by 64 take 147 us instead of 153, of 2**18 elements 31 instead of 51.
            "layer-norms": Limits(calls=4, elements=1 << 18),
        },
    }
)
"""By the type of a device, and by family; where there is none nothing is batched. Elementwise calls
are batched nowhere: 8 sines of 256 by 256 take 237 us instead of 206 on an H100. On one core of a
CPU 16 products of 16 by 16 gain (33 us, batched 21), 4 or such of 64 by 64 lose (33 us, 37), as do
elementwise calls from 1024 elements on; plait's loops make the small ones that gain as they are."""


def batching(
    name: str,
    families: Sequence[Family],
    limits: Mapping[str, Mapping[str, Limits]] = LIMITS,
    doc: str = "",
) -> Pass:
    """A pass that batches calls of these families, the first that knows a call.

    Args:
        name: of the pass.
        families: in order.
        limits: by the type of a device, and by the family's name.
        doc: what is said of the pass.
    """
    chosen = tuple(families)

    def rewrite(context: PassContext) -> None:
        if not any(_is_limited(node, limits) for node in context.graph.nodes):
            return  # no device of the graph gains
        for level in _by_depth(context.graph):
            for family, members in _alike(level, chosen, limits):
                limit = limits[_device(members[0])][family.name]
                for batch in _chunks(members, limit.most_calls):
                    if _is_enough(batch, limit):
                        _write(context, name, family, batch)
        if context.rewrites:
            sort_calls(context.graph, context.move)

    return Pass(name, rewrite, doc or f"batches of {', '.join(each.name for each in chosen)}")


def _device(node: fx.Node) -> str:
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    return value.device.type if isinstance(value, torch.Tensor) else ""


def _is_limited(node: fx.Node, limits: Mapping[str, Mapping[str, Limits]]) -> bool:
    return node.op == "call_function" and _device(node) in limits


def _by_depth(graph: fx.Graph) -> list[list[fx.Node]]:
    """The calls by the length of the longest way to them, each in the graph's order."""
    depth: dict[fx.Node, int] = {}
    levels: dict[int, list[fx.Node]] = defaultdict(list)
    effects = 0
    for node in graph.nodes:
        depth[node] = max((depth[each] + 1 for each in node.all_input_nodes), default=0)
        if has_effects(node):
            depth[node] = effects = max(depth[node], effects + 1)
        if node.op == "call_function":
            levels[depth[node]].append(node)
    return [levels[each] for each in sorted(levels)]


def _alike(
    level: Sequence[fx.Node],
    families: Sequence[Family],
    limits: Mapping[str, Mapping[str, Limits]],
) -> Iterator[tuple[Family, list[fx.Node]]]:
    groups: dict[Key, list[fx.Node]] = defaultdict(list)
    found: dict[Key, Family] = {}
    for node in level:
        known = limits.get(_device(node))
        if known is None or not node.users or has_effects(node):
            continue
        for family in families:
            if family.name in known and (key := family.key(node)) is not None:
                key = (family.name, "recomputed" in node.meta, *key)
                groups[key].append(node)
                found[key] = family
                break
    for key, members in groups.items():
        yield found[key], members


def _chunks(members: list[fx.Node], most: int) -> Iterator[list[fx.Node]]:
    for begin in range(0, len(members), most):
        yield members[begin : begin + most]


def _is_enough(batch: Sequence[fx.Node], limit: Limits) -> bool:
    first = batch[0]
    values = [each.meta["val"] for each in first.all_input_nodes]
    if not isinstance(first.meta["val"], (tuple, list)):
        values.append(first.meta["val"])
    if any(traced_numel(each) > limit.elements for each in values):
        return False
    return len(batch) > 1 and len(batch) >= limit.calls * len(_copied(batch))


def _copied(batch: Sequence[fx.Node]) -> list[int]:
    """Which operands are to be stacked: those of which there is more than one, and that are not
    the elements of a batch already."""
    columns = list(zip(*(node.all_input_nodes for node in batch), strict=True))
    return [place for place, each in enumerate(columns) if not _is_there(each)]


def _is_there(nodes: Sequence[fx.Node]) -> bool:
    first = nodes[0]
    if all(each is first for each in nodes):
        return True
    sources = {each.args[0] if each.target is aten.select.int else each for each in nodes}
    return len(sources) == 1


def _write(context: PassContext, name: str, family: Family, nodes: list[fx.Node]) -> None:
    """Let the users of all calls use elements of a batch."""
    first = nodes[0]
    call = Calls(context, first, name)
    olds: list[fx.Node] = []
    news: list[fx.Node] = []
    for place, batch in enumerate(family.write(call, nodes)):
        for at, node in enumerate(nodes):
            for old in _results(node, place):
                made = call(aten.select.int, batch, 0, at)
                if old in context.memory.by_root:  # the caller gets it, or looks at it
                    made = call(aten.clone.default, made, memory_format=torch.contiguous_format)
                olds.append(old)
                news.append(made)
    fit = all(same_tensor(*pair) for pair in zip(olds, news, strict=True))
    if olds and fit and context.replace_all(olds, news):
        context.matches[family.name] += 1
        for node in nodes:
            for user in list(node.users):
                context.graph.erase_node(user)
            context.graph.erase_node(node)
        call.drop_unused()
    else:
        call.erase()


def _results(node: fx.Node, place: int) -> list[fx.Node]:
    """The nodes that are a result of a call, if it is used."""
    if not isinstance(node.meta["val"], (tuple, list)):
        return [node]
    parts = [user for user in node.users if user.target is operator.getitem]
    return [user for user in parts if cast(int, user.args[1]) == place and user.users]
