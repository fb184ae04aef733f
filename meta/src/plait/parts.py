"""Graphs that cannot be compiled whole: in parts, from one operator that Python calls to the next.

Python reads numbers from tensors, computes with them, and calls what gives sizes that depend on
data, and collectives, which are waited for by the very tensor that they gave. It gives them to the
next part, as where the tracer breaks a graph. Others could be compiled whole, but run better in
parts: see `plait.buckets` and `plait.gpus`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from plait.numbers import is_float
from plait.pipeline import HIDDEN
from plait.record import Runner
from plait.switches import is_switch, kept_settings, key, switched_by, without_inference_mode
from plait_utils import dataclass

if TYPE_CHECKING:
    from torch import fx

    from plait.data_sizes import Bound, Sizes


IN_PART = "in_part"
"""Under which the placeholders of a part note that it is one: it is not cut again for the same."""


@dataclass(slots=True)
class Part:
    """Nodes that are compiled together."""

    nodes: list[fx.Node] = field(default_factory=list)


def in_parts(
    captured: fx.GraphModule,
    compile_part: Callable[[fx.GraphModule, int], Runner],
    starts: frozenset[fx.Node] = frozenset(),
) -> Runner | None:
    """What runs a graph in parts; None where there is nothing to cut at, or that cannot be done.

    `compile_part` makes a part callable, which comes with its position. Further parts begin at the
    nodes in `starts`.
    """
    captured = without_inference_mode(captured)
    steps = _steps(captured, starts)
    nodes = captured.graph.nodes
    if not (starts or any(map(_is_cut, nodes))) or any(map(_may_switch, nodes)):
        return None
    checks = _checks(captured, steps)
    if checks is None:
        return None
    needed = _needed_after(captured, steps)
    reached = _reached(captured)
    inside = {node for step in steps if isinstance(step, Part) for node in step.nodes}
    runs: list[_Run] = []
    for number, (step, check) in enumerate(zip(steps, checks, strict=True)):
        if isinstance(step, Part):
            program = _program(captured, steps[:number], step, needed[number])
            if program is None:
                return None
            part, given, results = program
            if _is_hidden(results, reached, inside):
                for placeholder in part.graph.find_nodes(op="placeholder"):
                    placeholder.meta[HIDDEN] = True
            runs.append(_Run(compile_part(part, number), given, results, check))
        else:
            call = _computed(step, _switched(steps[:number]))
            is_cut = _is_cut(step) or _differentiates(step)
            runs.append(_Run(call, tuple(step.all_input_nodes), (step,), check, is_cut))
    return _runner(captured, runs, needed)


def _checks(
    captured: fx.GraphModule, steps: Sequence[Part | fx.Node]
) -> list[_Check | None] | None:
    """For each step what looks at the sizes of what it gives, as far as these depend on data.

    Parts look at those of their own as they are compiled. None where something that was assumed of
    such sizes cannot be checked.
    """
    from plait.data_sizes import Sizes, has_data_sizes
    from plait_utils.data_sizes import data_symbols

    if not has_data_sizes(captured):
        return [None] * len(steps)
    sizes = Sizes(captured)
    known: set[Any] = set()
    checks: list[_Check | None] = []
    for step in steps:
        given = set() if isinstance(step, Part) else data_symbols(step.meta.get("val"))
        known |= given
        checks.append(_Check(sizes, sizes.conditions(known)) if given else None)
    return checks if sizes.is_told else None


@dataclass(frozen=True, slots=True)
class _Check:
    """Looks at the sizes of what a step gives, and at what was assumed of them."""

    sizes: Sizes
    conditions: Sequence[Callable[[Bound], Any]]

    def __call__(self, node: fx.Node, value: Any, bound: Bound) -> None:
        """Raises OtherSizesError where they are others. `bound` gets what the sizes tell."""
        from plait.data_sizes import OtherSizesError

        self.sizes.take(node, value, bound)
        try:
            holds = all(condition(bound) for condition in self.conditions)
        except (KeyError, NameError, ArithmeticError) as error:  # it cannot be computed
            raise OtherSizesError from error
        if not holds:
            raise OtherSizesError


@dataclass(frozen=True, slots=True)
class _Run:
    """What is called, what with, and what of: a part has a tuple of results."""

    call: Runner
    given: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]
    check: _Check | None = None
    is_cut: bool = False
    """Whether all nodes of the graph up to the result have run then, and none that draws later."""


def _steps(captured: fx.GraphModule, starts: frozenset[fx.Node]) -> list[Part | fx.Node]:
    """The parts, and between them the nodes that Python computes; one part where there is nothing
    to cut at."""
    from plait.data_sizes import has_data_sizes

    steps: list[Part | fx.Node] = []
    part = Part()
    known = set(captured.graph.find_nodes(op="placeholder"))
    is_of_data = has_data_sizes(captured)
    for node in captured.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        if node in starts and part.nodes:
            steps.append(part)
            known.update(part.nodes)
            part = Part()
        if _is_cut(node) or (_differentiates(node) and not (is_of_data and _is_within(node, part))):
            if part.nodes:
                steps.append(part)
                known.update(part.nodes)
                part = Part()
        elif _is_size(node) and known.issuperset(node.all_input_nodes):
            known.add(node)  # whoever needs it computes it
            continue
        elif not (_is_plain(node) and known.issuperset(node.all_input_nodes)):
            part.nodes.append(node)
            continue
        steps.append(node)
        known.add(node)
    if part.nodes:
        steps.append(part)
    return _with_ints(captured, steps)


def _differentiates(node: fx.Node) -> bool:
    import torch

    return node.target is torch.autograd.grad


def _is_within(node: fx.Node, part: Part) -> bool:
    """Whether all that a node differentiates is computed in a part.

    Elsewhere Python differentiates, and the parts before are parts of autograd's graph.
    """
    own = set(part.nodes)
    waiting = list(node.all_input_nodes)
    seen: set[fx.Node] = set()
    while waiting:
        each = waiting.pop()
        if each in seen or each.op in ("placeholder", "get_attr"):
            continue
        seen.add(each)
        if each in own:
            waiting += each.all_input_nodes
        elif _needs_gradient(each.meta.get("val")):
            return False
    return True


def _needs_gradient(value: Any) -> bool:
    import torch

    if isinstance(value, list | tuple):
        return any(map(_needs_gradient, value))
    return isinstance(value, torch.Tensor) and value.requires_grad


def _is_cut(node: fx.Node) -> bool:
    """Whether a graph is cut at a node: where it reads a number, gets a size that depends on data,
    calls what several processes call together, or takes a tensor from one GPU to another."""
    from plait.gpus import moves_between_gpus
    from plait_utils.collectives import is_collective
    from plait_utils.data_sizes import gives_sizes

    together = is_collective(node.target) or moves_between_gpus(node)
    return together or _is_read(node) or gives_sizes(node)


def _with_ints(captured: fx.GraphModule, steps: Sequence[Part | fx.Node]) -> list[Part | fx.Node]:
    """The steps, where each part computes the sizes that it needs of tensors, and Python those that
    it needs. So no part is given a size as an int, which would be a constant of its program."""
    found: list[Part | fx.Node] = []
    done: set[fx.Node] = set()
    for step in steps:
        nodes = step.nodes if isinstance(step, Part) else [step]
        ints = _ints_before(nodes)
        if isinstance(step, Part):
            found.append(Part([*ints, *nodes]))
        else:
            found += [each for each in ints if each not in done]
            done.update(ints)
            found.append(step)
    (output,) = captured.graph.find_nodes(op="output")
    return [*found, *(each for each in _ints_before([output]) if each not in done)]


def _ints_before(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The sizes that nodes need and that others compute, in the graph's order."""
    own, waiting = set(nodes), list(nodes)
    found: set[fx.Node] = set()
    while waiting:
        for each in waiting.pop().all_input_nodes:
            if each not in own and each not in found and _is_size(each):
                found.add(each)
                waiting.append(each)
    return sorted(found, key=lambda node: node._sort_key)


def _is_size(node: fx.Node) -> bool:
    """Whether a node computes an int of others and of the sizes of tensors."""
    import torch

    from plait_utils.data_sizes import reads_integer

    if node.target is operator.getitem and type(_value(node.args[0])) is list:
        return False  # one of several integers that are read at once
    is_int = isinstance(node.meta.get("val"), torch.SymInt)
    return is_int and node.op != "placeholder" and not reads_integer(node)


def _is_read(node: fx.Node) -> bool:
    """Whether a node gives a number that it reads from a tensor."""
    return is_float(node) and any(map(_is_tensor, node.all_input_nodes))


def _is_plain(node: fx.Node) -> bool:
    """Whether a node computes with numbers, or takes an element of several results."""
    if node.target is operator.getitem:
        return isinstance(node.args[0].meta.get("val"), list | tuple)  # type: ignore[union-attr]  # a node
    return is_float(node) and bool(node.all_input_nodes) and not _is_read(node)


def _value(given: Any) -> Any:
    """What a node gives, as it was captured."""
    return given.meta.get("val")


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
        copies[node].meta = {**node.meta, IN_PART: True}
    for node in (each for each in used if each.op == "get_attr"):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    for node in (*_switched(before), *part.nodes):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    results = tuple(node for node in part.nodes if node in needed and not _is_size(node))
    graph.output(tuple(copies[node] for node in results))
    made = fx.GraphModule(captured, graph, type(captured).__name__)
    return made, tuple(outside), results


def _reached(captured: fx.GraphModule) -> dict[fx.Node, int]:
    """The outputs, as bits, from which a gradient comes to each node that needs one."""
    (output,) = captured.graph.find_nodes(op="output")
    given = dict.fromkeys(output.all_input_nodes)
    bits = {node: 1 << number for number, node in enumerate(given)}
    found: dict[fx.Node, int] = {}
    for node in reversed(captured.graph.nodes):
        if _needs_gradient(node.meta.get("val")):
            found[node] = bits.get(node, 0)
            for user in node.users:
                found[node] |= found.get(user, 0)
    return found


def _is_hidden(
    results: Sequence[fx.Node], reached: Mapping[fx.Node, int], inside: Collection[fx.Node]
) -> bool:
    """Whether parts alone see the results that need gradients, and all get theirs or none does."""
    needing = [node for node in results if node in reached]
    seen = all(user in inside for node in needing for user in node.users)
    return seen and len({reached[node] for node in needing}) == 1


def _is_number(node: fx.Node) -> bool:
    import torch

    return isinstance(node.meta.get("val"), int | float | torch.SymInt | torch.SymFloat)


def _switched(before: Sequence[Part | fx.Node]) -> list[fx.Node]:
    """What sets the settings that are in force after some steps."""
    return list({key(node): node for node in _nodes(before) if is_switch(node)}.values())


def _nodes(steps: Sequence[Part | fx.Node]) -> Iterator[fx.Node]:
    for step in steps:
        yield from step.nodes if isinstance(step, Part) else [step]


def _may_switch(node: fx.Node) -> bool:
    """Whether a node may change how later ones compute, in a way that is not known here: it
    neither takes nor gives a value."""
    import torch

    harmless = is_switch(node) or node.target in (
        torch.clear_autocast_cache,
        torch._C._accelerator_getAccelerator,
    )
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

    from plait.data_sizes import told_how_far
    from plait_utils.checks import check, check_number

    placeholders = captured.graph.find_nodes(op="placeholder")
    (output,) = captured.graph.find_nodes(op="output")
    sizes = _sizes_of_inputs(captured, runs)
    sized = () if sizes is None else tuple(filter(_has_open_sizes, placeholders))
    steps = [*zip(runs, _done_with(placeholders, runs, needed), strict=True)]
    switched = switched_by(captured.graph)

    def run(*inputs: Any) -> Any:
        values = dict(zip(placeholders, inputs, strict=True))
        bound: Bound = {}
        if sizes is not None:
            for node in sized:
                sizes.give(node, values[node], bound)
        with kept_settings(switched), told_how_far() as far:
            for each, done in steps:
                found = each.call(*[values[node] for node in each.given])
                values.update(zip(each.results, found, strict=True))
                if each.is_cut:
                    far.node = each.results[0].name
                if each.check is not None:
                    each.check(each.results[0], found[0], bound)
                for node in done:
                    del values[node]
        return map_arg(output.args[0], values.__getitem__)

    if not any(node.target in (check, check_number) for node in captured.graph.nodes):
        setattr(run, "runs_in_order", True)  # noqa: B010  # for mypy
    return run


def _done_with(
    placeholders: Sequence[fx.Node], runs: Sequence[_Run], needed: Sequence[set[fx.Node]]
) -> Iterator[tuple[fx.Node, ...]]:
    """For each step the values that nothing needs after it."""
    held = dict.fromkeys(placeholders)
    for each, later in zip(runs, needed, strict=True):
        held.update(dict.fromkeys(each.results))
        done = tuple(node for node in held if node not in later)
        yield done
        for node in done:
            del held[node]


def _has_open_sizes(node: fx.Node) -> bool:
    """Whether an input is an int, or a tensor with sizes or strides that differ."""
    import torch

    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return bool(value._has_symbolic_sizes_strides)
    return isinstance(value, int | torch.SymInt)


def _sizes_of_inputs(captured: fx.GraphModule, runs: Sequence[_Run]) -> Sizes | None:
    """The sizes of a graph's inputs, where some step looks at them."""
    from plait.data_sizes import Sizes

    return Sizes(captured) if any(each.check is not None for each in runs) else None
