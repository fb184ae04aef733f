"""Graphs that read numbers from tensors and cannot be compiled whole: in parts, from read to read.

Between the parts Python reads the numbers, computes with them, and gives them to the next part,
as where the tracer breaks a graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any

from plait.numbers import is_float
from plait.record import Runner
from plait_utils import dataclass

if TYPE_CHECKING:
    from torch import fx


@dataclass(slots=True)
class Part:
    """Nodes that are compiled together."""

    nodes: list[fx.Node] = field(default_factory=list)


def in_parts(
    captured: fx.GraphModule, compile_part: Callable[[fx.GraphModule, int], Runner]
) -> Runner | None:
    """What runs a graph in parts; None where it reads no numbers, or cannot be cut there.

    `compile_part` makes a part callable, which comes with its position.
    """
    steps = _steps(captured)
    nodes = captured.graph.nodes
    if not any(map(_is_read, nodes)) or any(map(_may_switch, nodes)):
        return None
    needed = _needed_after(captured, steps)
    runs: list[_Run] = []
    for number, step in enumerate(steps):
        if isinstance(step, Part):
            program = _program(captured, steps[:number], step, needed[number])
            if program is None:
                return None
            part, given, results = program
            runs.append(_Run(compile_part(part, number), given, results))
        else:
            call = _computed(step, _switched(steps[:number]))
            runs.append(_Run(call, tuple(step.all_input_nodes), (step,)))
    return _runner(captured, runs, needed)


@dataclass(frozen=True, slots=True)
class _Run:
    """What is called, what with, and what of: a part has a tuple of results."""

    call: Runner
    given: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]


def _steps(captured: fx.GraphModule) -> list[Part | fx.Node]:
    """The parts, and between them the nodes that Python computes; one part where there is nothing
    to cut at."""
    steps: list[Part | fx.Node] = []
    part = Part()
    known = set(captured.graph.find_nodes(op="placeholder"))
    for node in captured.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        if _is_run_by_python(node):
            if part.nodes:
                steps.append(part)
                known.update(part.nodes)
                part = Part()
        elif not (_is_plain(node) and known.issuperset(node.all_input_nodes)):
            part.nodes.append(node)
            continue
        steps.append(node)
        known.add(node)
    return [*steps, part] if part.nodes else steps


def _is_run_by_python(node: fx.Node) -> bool:
    """Whether a graph is cut at a node: where it reads a number, and where it differentiates, for
    which the parts before are parts of autograd's graph."""
    import torch

    return _is_read(node) or node.target is torch.autograd.grad


def _is_read(node: fx.Node) -> bool:
    """Whether a node gives a number that it reads from a tensor."""
    return is_float(node) and any(map(_is_tensor, node.all_input_nodes))


def _is_plain(node: fx.Node) -> bool:
    """Whether a node computes with numbers, or takes an element of several results."""
    if node.target is operator.getitem:
        return isinstance(node.args[0].meta.get("val"), list | tuple)  # type: ignore[union-attr]  # a node
    return is_float(node) and bool(node.all_input_nodes) and not _is_read(node)


def _is_tensor(node: fx.Node) -> bool:
    import torch

    return isinstance(node.meta.get("val"), torch.Tensor)


def _needed_after(captured: fx.GraphModule, steps: Sequence[Part | fx.Node]) -> list[set[fx.Node]]:
    """For each step the nodes that later ones, or the caller, need."""
    (output,) = captured.graph.find_nodes(op="output")
    needed = set(output.all_input_nodes)
    found: list[set[fx.Node]] = []
    for step in reversed(steps):
        found.append(set(needed))
        for node in step.nodes if isinstance(step, Part) else [step]:
            needed.update(node.all_input_nodes)
    return found[::-1]


def _program(
    captured: fx.GraphModule, before: Sequence[Part | fx.Node], part: Part, needed: set[fx.Node]
) -> tuple[fx.GraphModule, tuple[fx.Node, ...], tuple[fx.Node, ...]] | None:
    """A part as a graph, what it is given, and which nodes it returns. None where it needs what
    cannot be given to a graph."""
    from torch import fx

    own = set(part.nodes)
    used = dict.fromkeys(each for node in part.nodes for each in node.all_input_nodes)
    outside = [node for node in used if node not in own and node.op != "get_attr"]
    if not all(_is_tensor(node) or _is_number(node) for node in outside):
        return None
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in outside:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = {**node.meta}
    for node in (each for each in used if each.op == "get_attr"):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    for node in (*_switched(before), *part.nodes):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    results = tuple(node for node in part.nodes if node in needed)
    graph.output(tuple(copies[node] for node in results))
    made = fx.GraphModule(captured, graph, type(captured).__name__)
    return made, tuple(outside), results


def _is_number(node: fx.Node) -> bool:
    import torch

    return isinstance(node.meta.get("val"), int | float | torch.SymInt | torch.SymFloat)


@cache
def _settings() -> dict[Any, Callable[..., Any]]:
    """What programs switch for what follows, by its setter: what reads it."""
    import torch

    return {
        torch._C._set_grad_enabled: torch.is_grad_enabled,
        torch.set_autocast_enabled: torch.is_autocast_enabled,
        torch.set_autocast_dtype: torch.get_autocast_dtype,
        torch.set_autocast_cache_enabled: torch.is_autocast_cache_enabled,
    }


def _key(node: fx.Node) -> tuple[Any, ...]:
    """Which setting a node sets: the last argument is its value."""
    return (node.target, *node.args[:-1])


def _is_switch(node: fx.Node) -> bool:
    return node.target in _settings()


def _switched(before: Sequence[Part | fx.Node]) -> list[fx.Node]:
    """What sets the settings that are in force after some steps."""
    return list({_key(node): node for node in _nodes(before) if _is_switch(node)}.values())


def _nodes(steps: Sequence[Part | fx.Node]) -> Iterator[fx.Node]:
    for step in steps:
        yield from step.nodes if isinstance(step, Part) else [step]


def _may_switch(node: fx.Node) -> bool:
    """Whether a node may change how later ones compute, in a way that is not known here: it
    neither takes nor gives a value."""
    import torch

    harmless = _is_switch(node) or node.target is torch.clear_autocast_cache
    if harmless or node.op != "call_function" or isinstance(node.target, torch._ops.OpOverload):
        return False
    return not node.all_input_nodes and node.meta.get("val") is None


def _computed(node: fx.Node, switches: Sequence[fx.Node]) -> Runner:
    """What Python does at a node under some settings, given the values of its inputs."""
    import torch
    from torch import fx

    graph = fx.Graph()
    copies = {each: graph.placeholder(each.name) for each in node.all_input_nodes}
    for each in switches:
        graph.node_copy(each)
    graph.output((graph.node_copy(node, copies.__getitem__),))
    found: Runner = fx.GraphModule(torch.nn.Module(), graph).forward
    return found


def _runner(
    captured: fx.GraphModule, runs: Sequence[_Run], needed: Sequence[set[fx.Node]]
) -> Runner:
    """Runs the parts in order, and keeps what they give as long as it is needed."""
    from torch.fx.node import map_arg

    switched = {_key(node) for node in captured.graph.nodes if _is_switch(node)}
    placeholders = captured.graph.find_nodes(op="placeholder")
    (output,) = captured.graph.find_nodes(op="output")

    def run(*inputs: Any) -> Any:
        values = dict(zip(placeholders, inputs, strict=True))
        settings = [(setter, place, _settings()[setter](*place)) for setter, *place in switched]
        try:
            for each, later in zip(runs, needed, strict=True):
                found = each.call(*[values[node] for node in each.given])
                values.update(zip(each.results, found, strict=True))
                for node in [node for node in values if node not in later]:
                    del values[node]
        finally:
            for setter, place, value in settings:
                setter(*place, value)
        return map_arg(output.args[0], values.__getitem__)

    return run
