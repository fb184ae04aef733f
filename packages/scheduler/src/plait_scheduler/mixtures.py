"""Products of what is computed, pair by pair, of other products, as one kernel.

The gradients of an attention are such: its weights, and the gradients of its scores, are computed
of the scores and of another product, and multiplied with queries, keys and the result's gradients.
A kernel that goes over blocks of pairs computes their products again and keeps none of it in
memory. Mixtures of the same pairs become one, which computes these once, and sums over pairs are
added up there, too: the gradients of what a score function captures. Rows of keys and values that
heads share are summed over these in the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from plait_ir_lowering import Buffer, Definition, Graph, Mixture, Value, Var, atoms
from plait_scheduler.attention_masks import shared_conditions
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.makers import Makers
from plait_scheduler.mixture_matches import Followers, Match, product_match, sum_match
from plait_scheduler.mixture_merging import merged, over_heads
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.pair_products import in_order, is_product, spans_for, too_long
from plait_scheduler.prune import prune
from plait_scheduler.sizes import buffer_bytes, estimate, expressions_in

_FEWEST_ROWS = 8
"""With fewer rows a product of matrices is one of vectors, which is read once."""


def fuse_mixtures(graph: Graph, options: SchedulerOptions, log: DecisionLog) -> Graph:
    """`graph` with mixtures in kernels of their own."""
    if not options.fuse_mixtures or sum(map(is_product, graph.definitions)) < 2:
        return graph
    makers, followers = Makers.of(graph, options), Followers.of(graph)
    matches: list[Match] = []
    for place, definition in enumerate(graph.definitions):
        match = product_match(makers, followers, place, definition)
        match = match or sum_match(makers, place, definition)
        if match is None:
            continue
        obstacle = _obstacle(match.mixture, makers.buffers, options)
        if obstacle is None:
            matches.append(match)
        else:
            _settle(log, match, obstacle)
    found = _unread(graph, _merged(graph, matches), log)
    found = [match for match in found if _settle(log, match, None)]
    found = _unread(graph, found, log)  # fuel may have ended between those that share products
    for place in range(len(found)):
        found = _over_heads(graph, found, place, options, log)
    return _with_mixtures(graph, found, spans=options.attention_spans)


def _settle(log: DecisionLog, match: Match, obstacle: str | None) -> bool:
    both = (match.pairs[0].name, match.buffers[0].name)
    nbytes = 2 * sum(map(buffer_bytes, match.pairs))
    reason = f"{both[0]} is read only for weights that products take"
    return log.settle(DecisionKind.MIXTURE, both, obstacle, reason, nbytes)


def _over_heads(
    graph: Graph, matches: list[Match], place: int, options: SchedulerOptions, log: DecisionLog
) -> list[Match]:
    """The mixtures, of which one sums over the heads that share its rows, where that is done
    afterwards."""
    match = matches[place]
    found = over_heads(match, options.min_parallel_points)
    if found is None:
        return matches
    changed = [*matches[:place], found, *matches[place + 1 :]]
    if _ordered(graph, changed) is None:
        return matches
    both = (match.buffers[0].name, found.buffers[0].name)
    reason = f"{both[0]} is read only for sums over heads that share rows"
    nbytes = 2 * sum(map(buffer_bytes, match.buffers))
    return changed if log.settle(DecisionKind.MIXTURE, both, None, reason, nbytes) else matches


def _unread(graph: Graph, found: list[Match], log: DecisionLog) -> list[Match]:
    """Those of some mixtures that together leave nothing in memory for each pair."""
    while found:
        changed = _with_mixtures(graph, found, spans=False)
        left = {b.name for d in changed.definitions for b in d.buffers}
        kept: list[Match] = []
        for match in found:
            read = [b.name for b in match.pairs if b.name in left]
            if read:
                _settle(log, match, f"something else reads {read[0]}")
            else:
                kept.append(match)
        if len(kept) == len(found):
            break
        found = kept
    return found


def _merged(graph: Graph, matches: Sequence[Match]) -> list[Match]:
    """The mixtures, those of the same pairs as one where nothing between them needs one of them,
    and no other that is one needs both."""
    found = _joined(matches, lambda _: True)
    if _ordered(graph, found) is not None:
        return found
    return _joined(matches, lambda together: _ordered(graph, together) is not None)


def _joined(matches: Sequence[Match], may_be: Callable[[Sequence[Match]], bool]) -> list[Match]:
    """The mixtures, those of the same pairs as one where that `may_be` with all others."""
    found: list[Match] = []
    for number, match in enumerate(matches):
        for place, other in enumerate(found):
            both = merged(other, match)
            if both is None:
                continue
            joined = [*found[:place], both, *found[place + 1 :]]
            if may_be([*joined, *matches[number + 1 :]]):
                found = joined
                break
        else:
            found.append(match)
    return found


def _obstacle(
    mixture: Mixture, buffers: Mapping[str, Buffer], options: SchedulerOptions
) -> str | None:
    """Why products are better left as they are."""
    if min(estimate(var.extent) for var in (mixture.ranges[-1], mixture.axis)) < _FEWEST_ROWS:
        return "there are few rows"
    firsts = [left for left, _ in mixture.factors]
    return too_long([*firsts, *mixture.values], buffers, options)


def _with_mixtures(graph: Graph, found: Sequence[Match], *, spans: bool) -> Graph:
    """`graph` with mixtures for products, and what they need; with what finds the places that
    their rows may see (`spans`)."""
    definitions = _ordered(graph, found, spans=spans)
    assert definitions is not None, "mixtures were merged one by one"
    return prune(replace(graph, definitions=definitions))


def _ordered(
    graph: Graph, found: Sequence[Match], *, spans: bool = False
) -> tuple[Definition, ...] | None:
    """The definitions of a graph with mixtures for products; None where one would need itself."""
    taken = {b.name for b in graph.inputs} | {b.name for d in graph.definitions for b in d.buffers}
    last = {match.places[-1]: match for match in found}
    gone = {place for match in found for place in match.places[:-1]}
    definitions: list[Definition] = []
    for place, definition in enumerate(graph.definitions):
        match = last.get(place)
        if match is not None:
            body, before = match.mixture, list[Definition]()
            made = Definition(match.buffers, body, definition.origin)
            masks = shared_conditions(body.parts[0])
            if spans and not _differs(masks, body.group):
                before, told = spans_for(masks, body.weights, body, made, taken)
                made = replace(made, body=replace(body, spans=told))
            definitions += [*before, made]
        elif place not in gone:
            definitions.append(definition)
    return in_order(definitions)


def _differs(masks: Sequence[Value], group: Var | None) -> bool:
    """Whether masks differ between the heads that rows are summed over."""
    exprs = (expr for mask in masks for expr in expressions_in(mask))
    return any(group in atoms(expr) for expr in exprs)
