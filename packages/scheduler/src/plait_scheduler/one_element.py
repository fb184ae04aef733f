"""Sums of rows of which one element counts.

    sum over r of (v where r = target, else 0)  is  v where target is in the row, else 0

Gradients of log-softmax sum the gradient of what a loss picks by targets: a row of zeros, but for
one element. Neither the sum nor the comparison of whole rows is needed, and nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce

from plait_ir_lowering import (
    Const,
    Definition,
    DType,
    Graph,
    IndexExpr,
    IndexValue,
    Load,
    Op,
    Pointwise,
    Reduction,
    ReductionKind,
    Value,
    Var,
    as_index,
)
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.inline import value_at
from plait_scheduler.nodes import Node, node_of
from plait_scheduler.summed import variables_of
from plait_utils import dataclass

_CONJUNCTIONS = ("bitwise_and", "logical_and")
_MOST_STEPS = 32
"""Values that are looked at, at most, to understand what a sum adds up."""


def pick_elements(graph: Graph, log: DecisionLog) -> Graph:
    """`graph` with that element in place of the sum."""
    nodes: dict[str, Node] = {}
    definitions: list[Definition] = []
    for place, definition in enumerate(graph.definitions):
        body = definition.body
        picked = _picked(body, nodes) if isinstance(body, Reduction) else None
        if picked is not None:
            both = definition.buffers[0].name, ""
            reason = "all but one of the elements of a row are zero"
            if log.settle(DecisionKind.PICK, both, None, reason):
                definition = replace(definition, body=picked)
        node = node_of(place, definition)
        if node is not None and node.is_pointwise:
            nodes[node.name] = node
        definitions.append(definition)
    return replace(graph, definitions=tuple(definitions))


def _picked(body: Reduction, nodes: Mapping[str, Node]) -> Pointwise | None:
    if body.kind is not ReductionKind.SUM or len(body.reduction_ranges) != 1:
        return None
    if body.value.dtype is DType.bool_:
        return None
    (var,) = body.reduction_ranges
    row = _Row(var, nodes)
    value = row.seen(body.value)
    if not isinstance(value, Op) or value.name != "where":
        return None
    condition, element, zero = value.args
    if not isinstance(zero, Const) or zero.value != 0 or row.varies(element):
        return None
    terms = list(row.terms(condition))
    chosen = [term for term in terms if row.varies(term)]
    target = row.target(chosen[0]) if len(chosen) == 1 else None
    if target is None:
        return None
    inside = (
        Op("ge", (target, Const(0, target.dtype))),
        Op("lt", (target, IndexValue(as_index(var.extent)))),
    )
    fixed = (term for term in terms if term is not chosen[0])
    met = reduce(lambda one, other: Op("bitwise_and", (one, other)), (*inside, *fixed))
    # Zeros and -0.0 add up to 0.0.
    return Pointwise(body.ranges, Op("where", (met, Op("add", (element, zero)), zero)))


@dataclass(slots=True)
class _Row:
    """Values along a variable, in definitions that are computed point by point."""

    var: Var
    nodes: Mapping[str, Node]
    steps: int = 0

    def seen(self, value: Value) -> Value:
        """A value that is loaded along the row as its definition has it."""
        while isinstance(value, Load) and value.buffer in self.nodes and self.varies(value):
            self.steps += 1
            node = self.nodes[value.buffer]
            plain = all(isinstance(place, IndexExpr) for place in value.index)
            if self.steps > _MOST_STEPS or not plain or value.dtype is not node.value.dtype:
                break
            value = value_at(node, value)
        return value

    def terms(self, condition: Value) -> Iterator[Value]:
        """What has to hold, all of it, for a condition to."""
        condition = self.seen(condition)
        if isinstance(condition, Op) and condition.name in _CONJUNCTIONS:
            for each in condition.args:
                yield from self.terms(each)
        else:
            yield condition

    def target(self, term: Value) -> Value | None:
        """What the place in the row is compared with; None of what is no such comparison."""
        if not isinstance(term, Op) or term.name != "eq":
            return None
        left, right = (self.seen(each) for each in term.args)
        place = IndexValue(self.var.expr)
        if left is place:
            left, right = right, left
        if right is not place or self.varies(left) or left.dtype is not place.dtype:
            return None
        return left

    def varies(self, value: Value) -> bool:
        """Whether it may differ from place to place."""
        return self.var in variables_of(value)
