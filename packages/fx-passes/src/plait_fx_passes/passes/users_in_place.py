"""Operators of a user's that write to a program's inputs themselves, among compiled code.

A recorded graph calls them with copies, which are written back in the end: a cache of which one
writes a row would be copied twice. Compiled code may run calls in another order than the graph
has, so an input is given to such an operator as it is only if nothing else reads what it was.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, cast

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.aliasing import storage_root
from plait_fx_passes.aten_graph import (
    AtenGraph,
    AttributeInput,
    Computed,
    Mutation,
    ResultView,
    UserInput,
)
from plait_fx_passes.layouts import is_dense, same_strides
from plait_fx_passes.op_info import op_info
from plait_fx_passes.passes.in_place import write_of_users
from plait_fx_passes.record.written import original_of, variant_over
from plait_utils import dataclass

Run: TypeAlias = Callable[..., Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class UsersInPlace:
    """A graph whose results ``written`` are inputs, each by position, once it has run.

    They are still results and mutations of the ``graph``; :meth:`wrap` says that they are where
    they belong.
    """

    graph: AtenGraph
    written: Mapping[int, int]

    def wrap(self, run: Run, others: Collection[int] = ()) -> Run:
        """The compiled graph, with the inputs themselves among its results; ``others`` are results
        that it does not return."""
        returned = [n for n in range(len(self.graph.results)) if n not in others]
        places = [(returned.index(result), index) for result, index in self.written.items()]

        def wrapped(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
            if not torch.is_inference_mode_enabled():
                for _, index in places:
                    if inputs[index].is_inference():
                        inputs[index].copy_(inputs[index])  # raises what eager does
            results = list(run(*inputs))
            for place, index in places:
                results[place] = inputs[index]
            return results

        return wrapped


def users_in_place(graph: AtenGraph) -> UsersInPlace | None:
    """Let operators of a user's write to inputs that nothing else reads before; None where there
    are none. The graph is not changed."""
    if not any(_original(node) for node in graph.graph.nodes):
        return None
    private = graph.copy()
    written: dict[int, int] = {}
    over: dict[fx.Node, list[str]] = {}
    for mutation in private.mutations:
        chain = _chain(private, mutation)
        for node, name in chain:
            over.setdefault(node, []).append(name)
        if chain:
            written[mutation.result] = mutation.input
    if not written:
        return None
    for node, names in over.items():
        node.target = variant_over(cast(OpOverload, node.target), tuple(names))
    counted = [each.input for each in private.mutations if each.counted and each.result in written]
    return UsersInPlace(replace(private, counted=(*private.counted, *counted)), written)


def _original(node: fx.Node) -> OpOverload | None:
    target = node.target
    return original_of(target) if isinstance(target, OpOverload) else None


def _chain(graph: AtenGraph, mutation: Mutation) -> list[tuple[fx.Node, str]]:
    """The calls that make of an input what is written back, each with the argument that this is;
    none where something else reads the input, or what one call hands to the next."""
    given, node = graph.placeholders[mutation.input], graph.results[mutation.result]
    chain: list[tuple[fx.Node, str]] = []
    if not _may_be_written(graph, mutation):
        return chain
    while node is not given:
        call, place = node, None
        if node.target is operator.getitem:
            call, place = cast("tuple[fx.Node, int]", node.args)
        before = _written_as(call, place)
        if before is None or not _lies_alike(given.meta["val"], node.meta["val"]):
            return []
        node, name = before
        if list(node.users) != [call] or _times(call, node) != 1:
            return []
        chain.append((call, name))
    return chain


def _written_as(call: fx.Node, place: int | None) -> tuple[fx.Node, str] | None:
    """The argument, with its name, of which a call writes to a copy that is its result."""
    original = _original(call)
    write = None if original is None else write_of_users(call, original)
    if original is None or write is None:
        return None
    for name, (value, where) in zip(op_info(original).written, write.over, strict=True):
        if where == place:
            return value, name
    return None


def _may_be_written(graph: AtenGraph, mutation: Mutation) -> bool:
    """Whether memory of an input is its own, and nobody is shown what becomes of it otherwise."""
    source, value = graph.inputs[mutation.input], graph.placeholders[mutation.input].meta["val"]
    shared = {index for group in graph.shared_inputs for index in group}
    moved = {each.input for each in graph.metadata_mutations}
    shown = {each.result for each in graph.outputs if isinstance(each, (Computed, ResultView))}
    root = storage_root(graph.results[mutation.result])
    return (
        isinstance(source, (UserInput, AttributeInput))
        and mutation.input not in shared | moved | set(graph.frozen)
        and mutation.result not in shown
        and sum(each.input == mutation.input for each in graph.mutations) == 1
        and sum(storage_root(each) is root for each in graph.results) == 1
        and not value.requires_grad
        and is_dense(value)
    )


def _lies_alike(value: torch.Tensor, result: torch.Tensor) -> bool:
    same = value.dtype == result.dtype and value.device == result.device
    return same and same_strides(value, result)


def _times(node: fx.Node, value: fx.Node) -> int:
    """How often a value is among a call's arguments."""
    found: list[fx.Node] = []
    fx.node.map_arg((node.args, dict(node.kwargs)), found.append)
    return found.count(value)
