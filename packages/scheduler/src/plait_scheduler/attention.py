"""Attention: two products, between which rows become their softmax, as one kernel.

The product of queries and keys has as many elements as there are pairs of these, and is read
where a softmax is computed of it, which another product takes. One kernel that goes over keys block
by block keeps none of that in memory. Whatever is computed of the scores before the softmax, point
by point, becomes part of it: biases, masks, functions of positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from plait_ir_lowering import Buffer, Definition, DType, Graph
from plait_scheduler.attention_masks import without_masks
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.pair_products import in_order, is_product, spans_for, too_long
from plait_scheduler.prune import prune
from plait_scheduler.sizes import buffer_bytes, estimate

if TYPE_CHECKING:
    from plait_scheduler.attention_matches import Match

_FEWEST_ROWS = 8
"""With fewer queries a product of matrices is one of vectors, which is read once."""


def fuse_attention(graph: Graph, options: SchedulerOptions, log: DecisionLog) -> Graph:
    """`graph` with attention in kernels of its own."""
    if not options.fuse_attention or sum(map(is_product, graph.definitions)) < 2:
        return graph
    from plait_scheduler.attention_matches import match_of
    from plait_scheduler.makers import Makers

    makers = Makers.of(graph, options)
    found = {
        place: match
        for place, definition in enumerate(graph.definitions)
        if (match := match_of(makers, definition)) is not None
    }
    if not found:
        return graph
    changed = dict(found)
    left = {b.name for d in _with_bodies(graph, changed).definitions for b in d.buffers}
    for place, match in found.items():
        scores = match.scores
        obstacle = f"something else reads {scores.name}" if scores.name in left else None
        obstacle = obstacle or _obstacle(match, makers.buffers, options)
        reason = f"{scores.name} is read only for the softmax that weights it"
        both = (scores.name, graph.definitions[place].buffers[0].name)
        nbytes = 4 * buffer_bytes(scores)  # it and the weights, each written and read
        if not log.settle(DecisionKind.ATTENTION, both, obstacle, reason, nbytes):
            del changed[place]
    return _with_bodies(graph, changed, spans=options.attention_spans)


def _obstacle(match: Match, buffers: Mapping[str, Buffer], options: SchedulerOptions) -> str | None:
    """Why two products are better left as they are."""
    attention = match.attention
    if estimate(attention.ranges[-1].extent) < _FEWEST_ROWS:
        return "there are few rows"
    if match.scores.device.type != "cpu" and match.scores.dtype is not DType.f32:
        return f"GPUs have no kernel for scores of {match.scores.dtype}"
    return too_long((attention.queries, attention.values), buffers, options)


def _with_bodies(graph: Graph, found: Mapping[int, Match], *, spans: bool = False) -> Graph:
    """`graph` with attentions for the definitions at these places, and what they need; with
    what finds the keys that their rows may see (`spans`)."""
    made = [buffer for each in graph.definitions for buffer in each.buffers]
    taken = {buffer.name for buffer in (*graph.inputs, *made)}
    given = {buffer for match in found.values() for buffer in match.sums}
    definitions: list[Definition] = []
    for place, definition in enumerate(graph.definitions):
        if place in found:
            match, body = found[place], found[place].attention
            buffers = (*definition.buffers, *match.sums)
            before: list[Definition] = []
            if spans:
                masks = without_masks(body.score)[0]
                before, found_spans = spans_for(masks, body.score, body, definition, taken)
                body = replace(body, spans=found_spans)
            definitions += [*before, Definition(buffers, body, definition.origin)]
        elif given.isdisjoint(definition.buffers):
            definitions.append(definition)
    return prune(replace(graph, definitions=in_order(definitions) or graph.definitions))
