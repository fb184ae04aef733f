"""Collectives started as early as their operands allow.

What is gathered takes memory from then on, so gathers start early only as far as a number of bytes
allows. What is reduced takes the place of its operand, or less, and starts at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import fx

from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.collectives.calls import (
    Kind,
    Start,
    is_elementwise,
    is_fence,
    is_part,
    size_in_bytes,
    start_of,
)
from plait_utils import dataclass


def early_starts(in_flight_bytes: int, *, in_order: bool = False) -> Pass:
    """A pass that starts collectives early.

    Args:
        in_flight_bytes: how many bytes of gathered results may be on their way at a node, for
            another gather to be started before it.
        in_order: whether no collective passes another one.
    """

    def start_early(context: PassContext) -> None:
        places = _places(context, in_flight_bytes, in_order)
        if places:
            _arrange(context, places)

    return Pass(
        "early-starts",
        start_early,
        "starts collectives as soon as their operands are there, and gathers ahead of their turn"
        " as far as memory allows",
    )


@dataclass(frozen=True, slots=True)
class _Early:
    """A collective, what is computed for it, and behind which node both go."""

    start: fx.Node
    along: frozenset[fx.Node]
    behind: int


def _places(context: PassContext, limit: int, in_order: bool) -> list[_Early]:
    nodes = list(context.graph.nodes)
    index = {node: position for position, node in enumerate(nodes)}
    starts = {node: start for node in nodes if (start := start_of(node)) is not None}
    along = {node: _along(node) for node in starts}
    moving = {*starts, *(each for group in along.values() for each in group)}
    first = sum(node.op == "placeholder" for node in nodes) - 1
    in_flight = [0] * len(nodes)
    found: list[_Early] = []
    fence, moves = first, 0
    for position, node in enumerate(nodes):
        start = starts.get(node)
        if start is None:
            fence = position if is_fence(node) else fence
            continue
        group = along[node]
        needed = (each for one in (node, *group) for each in one.all_input_nodes)
        earliest = max((index[each] for each in needed if each not in group), default=first)
        behind = max(earliest, fence)
        if start.kind is Kind.GATHER:
            behind = _affordable(start, behind, position, in_flight, limit)
        is_there = moving.issuperset(nodes[behind + 1 : position])
        if is_there or context.fuel.take():
            moves += not is_there
            found.append(_Early(node, group, behind))
            fence = max(fence, behind) if in_order else fence
        else:
            behind = position - 1
            fence = position if in_order else fence
        if start.kind is Kind.GATHER:
            _count(start, behind, index, in_flight)
    context.rewrites += moves
    return found if moves else []


def _along(start: fx.Node) -> frozenset[fx.Node]:
    """What a collective's operands are computed by, if that is cheap and takes no more memory.

    So are views, and elementwise calls whose values nothing else uses.
    """
    found: set[fx.Node] = set()
    waiting = list(start.all_input_nodes)
    while waiting:
        node = waiting.pop()
        if node in found or node.op != "call_function":
            continue
        alone = all(user is start or user in found for user in node.users)
        if is_part(node) or (alone and is_elementwise(node)):
            found.add(node)
            waiting += node.all_input_nodes
    return frozenset(found)


def _affordable(
    start: Start, earliest: int, position: int, in_flight: Sequence[int], limit: int
) -> int:
    """How far before its position a gather can start, by the memory of what it gives."""
    size = size_in_bytes(start.node.meta["val"])
    if size is None:
        return position - 1
    behind = position - 1
    while behind > earliest and in_flight[behind] + size <= limit:
        behind -= 1
    return behind


def _count(start: Start, behind: int, index: dict[fx.Node, int], in_flight: list[int]) -> None:
    """Note what a gather gives as on its way, until somebody waits for it."""
    size = size_in_bytes(start.node.meta["val"]) or 0
    end = min((index[wait] for wait in start.waits), default=len(in_flight) - 1)
    for position in range(behind + 1, end + 1):
        in_flight[position] += size


def _arrange(context: PassContext, places: Sequence[_Early]) -> None:
    """Move each collective, and what goes with it, behind its node, in the order they are in."""
    nodes = list(context.graph.nodes)
    index = {node: position for position, node in enumerate(nodes)}
    behind: dict[fx.Node, int] = {}
    for early in places:
        for node in (early.start, *early.along):
            if early.behind < behind.get(node, index[node]):
                behind[node] = early.behind

    def place(node: fx.Node) -> tuple[int, int]:
        return (behind[node], index[node]) if node in behind else (index[node], -1)

    for node, after in itertools.pairwise(sorted(nodes, key=place)):
        if node.next is not after:
            node.append(after)
