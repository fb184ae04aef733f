"""A graph as parts without collectives, and the calls between them.

A wait finds its collective by the storage of the tensor that it is given, so whoever compiles a
graph to code with memory of its own calls collectives between programs, with the tensors that these
gave. Nothing of a part is computed again in another one but views and tensors of one value, which
cost nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import map_arg

from plait_fx_passes.aliasing import is_view, storage_root
from plait_fx_passes.aten_graph import AtenGraph, Computed, UserInput
from plait_fx_passes.passes.collectives.calls import aten, start_of
from plait_fx_passes.passes.collectives.waits import ends
from plait_utils import dataclass
from plait_utils.collectives import is_collective

Run: TypeAlias = Callable[..., Any]
Compile: TypeAlias = Callable[[AtenGraph, Mapping[int, int]], Run]


@dataclass(frozen=True, slots=True)
class CollectivePart:
    """What is computed between collectives: a flat graph of ``given`` nodes of the whole graph,
    which gives the nodes ``results``.

    ``written`` says which of its results may be written over which of its placeholders.
    """

    graph: AtenGraph
    given: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]
    written: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A call that starts a collective or waits for one, or takes one of several results; before it
    come ``views`` of what it is given, in order."""

    node: fx.Node
    views: tuple[fx.Node, ...]
    given: tuple[fx.Node, ...]


@dataclass(frozen=True, slots=True)
class CollectiveParts:
    """A graph in steps, and which of its results are written over which of its placeholders."""

    graph: AtenGraph
    steps: tuple[CollectivePart | CollectiveCall, ...]
    written: Mapping[int, int]


def collective_parts(graph: AtenGraph, written: Mapping[int, int] | None = None) -> CollectiveParts:
    """The graph cut where collectives start and are waited for.

    What only finishes results, as the step of an optimizer does, is computed by the last part.

    Args:
        graph: of static sizes; it is not changed.
        written: results that may be written over placeholders. What the last part computes, once
            all that reads the placeholders has been waited for, is; other results are not.
    """
    found = _Parts(graph)
    chosen = found.writable(written or {})
    return CollectiveParts(graph, tuple(found.steps(chosen)), chosen)


class _Parts:
    """Which nodes of a graph are computed together."""

    def __init__(self, graph: AtenGraph) -> None:
        self._graph = graph
        self._results = set(graph.results)
        self._groups = list(self._cut())

    def _cut(self) -> Iterable[list[fx.Node] | fx.Node]:
        """The nodes of each part, and between them the calls."""
        last = {node for node in ends(self._graph.graph) if not _is_one_of_several(node)}
        pending: list[fx.Node] = []
        for node in self._graph.graph.nodes:
            if node.op != "call_function" or self._is_free(node):
                continue
            if not _is_call(node):
                if not _is_one_of_several(node):
                    pending += [node, *(each for each in node.users if _is_one_of_several(each))]
                continue
            now = [each for each in pending if each not in last]
            if now and node.target is not operator.getitem:
                yield now
                pending = [each for each in pending if each in last]
            yield node
        if pending:
            yield pending

    def _is_free(self, node: fx.Node) -> bool:
        """Whether whoever needs a node computes it: a view, or a tensor of one value."""
        if node in self._results or _is_call(node):
            return False
        is_filled = node.target is aten.full.default and not node.all_input_nodes
        return is_filled or (is_view(node) and node.target is not aten.as_strided.default)

    def _needs(self, nodes: Iterable[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
        """What nodes need of others, in the graph's order: what these have computed, and what is
        free."""
        own = set(nodes)
        waiting = list(own)
        others: set[fx.Node] = set()
        free: set[fx.Node] = set()
        while waiting:
            for each in waiting.pop().all_input_nodes:
                if each in own or each in others or each in free:
                    continue
                if self._is_free(each):
                    free.add(each)
                    waiting.append(each)
                else:
                    others.add(each)
        return sorted(others), sorted(free)

    def writable(self, written: Mapping[int, int]) -> dict[int, int]:
        """The results that the last part computes, over placeholders that no collective reads
        which nobody waits for."""
        last = self._groups[-1] if self._groups else None
        if not isinstance(last, list):
            return {}
        starts = (node for node in self._groups if isinstance(node, fx.Node))
        unknown = [node for node in starts if not _is_waited_for(node)]
        read = {storage_root(each) for node in unknown for each in node.all_input_nodes}
        placeholders, own = self._graph.placeholders, set(last)
        return {
            result: place
            for result, place in written.items()
            if self._graph.results[result] in own and placeholders[place] not in read
        }

    def steps(self, written: Mapping[int, int]) -> list[CollectivePart | CollectiveCall]:
        """The parts and calls, in order."""
        results, placeholders = self._graph.results, self._graph.placeholders
        needed = {node for n, node in enumerate(results) if n not in written}
        found: list[CollectivePart | CollectiveCall] = []
        over = {results[result]: placeholders[place] for result, place in written.items()}
        for group in reversed(self._groups):
            given, free = self._needs(group if isinstance(group, list) else [group])
            if isinstance(group, list):
                found.append(self._part(group, given, free, needed, over))
                over = {}
            else:
                found.append(CollectiveCall(group, tuple(free), tuple(given)))
            needed.update(given)
        return found[::-1]

    def _part(
        self,
        group: Sequence[fx.Node],
        given: Sequence[fx.Node],
        free: Sequence[fx.Node],
        needed: set[fx.Node],
        over: Mapping[fx.Node, fx.Node],
    ) -> CollectivePart:
        own = set(group)
        taken = tuple(dict.fromkeys([*given, *over.values()]))
        results = tuple(node for node in group if node in needed or node in over)
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in taken:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in sorted({*own, *free}):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in results))
        inputs = tuple(UserInput(n) for n in range(len(taken)))
        outputs = tuple(Computed(n) for n in range(len(results)))
        places = {results.index(node): taken.index(over[node]) for node in results if node in over}
        return CollectivePart(AtenGraph(graph, inputs, outputs), taken, results, places)


def _is_call(node: fx.Node) -> bool:
    """Whether a node starts a collective or waits for one, or takes what one of several gave."""
    if node.target is operator.getitem:
        return is_collective(cast(fx.Node, node.args[0]).target)
    return is_collective(node.target)


def _is_one_of_several(node: fx.Node) -> bool:
    """Whether a node takes one of the results of a node that is computed."""
    return node.target is operator.getitem and not _is_call(node)


def _is_waited_for(node: fx.Node) -> bool:
    """Whether what a call reads is read no longer once all waits of the graph are over."""
    if node.target is operator.getitem or len(node.all_input_nodes) == 0:
        return True
    start = start_of(node)
    if start is not None:
        return len(start.waits) > 0
    users = list(node.users)
    return node.target is torch.ops._c10d_functional.wait_tensor.default or (
        bool(users) and all(is_collective(user.target) for user in users)
    )


def parts_runner(parts: CollectiveParts, compile_part: Compile) -> Run:
    """What runs a graph in parts.

    Args:
        parts: the graph.
        compile_part: makes a part callable, given its graph and which of its results it writes
            over which of its placeholders. It takes a tensor for each placeholder, and returns a
            tuple of the other results.

    Returns:
        A function of the graph's placeholders. It returns a tuple of the results that are not
        written over placeholders, and raises what a call raises; what others have started by then
        goes on.
    """
    places = {node: n for n, node in enumerate(parts.graph.placeholders)}
    steps: list[tuple[Run, tuple[int, ...], tuple[int, ...]]] = []
    for step in parts.steps:
        given = tuple(places[node] for node in step.given)
        if isinstance(step, CollectivePart):
            run = compile_part(step.graph, step.written)
            made = [node for n, node in enumerate(step.results) if n not in step.written]
        else:
            run, made = _call_of(step), [step.node]
        for node in made:
            places[node] = len(places)
        steps.append((run, given, tuple(places[node] for node in made)))
    results = parts.graph.results
    returned = tuple(places[node] for n, node in enumerate(results) if n not in parts.written)
    inputs = len(parts.graph.placeholders)
    return _runner(_with_ends(steps, returned, inputs), len(places) - inputs, returned)


def _runner(
    steps: Sequence[tuple[Run, tuple[int, ...], tuple[int, ...], tuple[int, ...]]],
    count: int,
    returned: Sequence[int],
) -> Run:
    empty = [None] * count
    below = torch._C._AutoDispatchBelowAutograd

    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values: list[Any] = [*inputs, *empty]
        with torch.no_grad(), below():
            for call, given, made, done in steps:
                found = call(*[values[n] for n in given])
                for n, value in zip(made, found, strict=True):
                    values[n] = value
                for n in done:
                    values[n] = None
        return tuple([values[n] for n in returned])

    return run


def _with_ends(
    steps: Sequence[tuple[Run, tuple[int, ...], tuple[int, ...]]],
    returned: Sequence[int],
    inputs: int,
) -> list[tuple[Run, tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """The steps, each with the values that nothing needs after it."""
    needed = {*returned, *range(inputs)}
    found = []
    for run, given, made in reversed(steps):
        done = tuple(n for n in dict.fromkeys([*given, *made]) if n not in needed)
        needed.update(given)
        found.append((run, given, made, done))
    return found[::-1]


def _call_of(step: CollectiveCall) -> Run:
    """What makes a call, behind the views of what it is given."""
    node = step.node
    target = cast(OpOverload, node.target)
    if not step.views and node.args[:1] == step.given and not node.kwargs:
        rest = node.args[1:]
        return lambda given: (target(given, *rest),)
    chain = (*step.views, node)

    def call(*given: Any) -> tuple[Any]:
        values = dict(zip(step.given, given, strict=True))
        for each in chain:
            args = map_arg(each.args, values.__getitem__)
            kwargs = map_arg(each.kwargs, values.__getitem__)
            values[each] = cast(OpOverload, each.target)(*args, **kwargs)
        return (values[node],)

    return call
