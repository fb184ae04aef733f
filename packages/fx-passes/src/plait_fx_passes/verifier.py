"""The ATen graph contract, checked; an error shows the node, its neighbours, the user's line."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NoReturn, cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from plait_fx_passes.aliasing import storage_root
from plait_fx_passes.aten_graph import (
    AtenGraph,
    Computed,
    InputItself,
    InputView,
    Repeated,
    ResultView,
)
from plait_fx_passes.errors import VerificationError
from plait_fx_passes.layouts import has_static_sizes, same_strides, traced_size
from plait_fx_passes.op_info import OpKind, op_info
from plait_fx_passes.printer import format_node, format_value
from plait_fx_passes.record.fakes import fake_result
from plait_fx_passes.record.numbers import ARITHMETIC, is_number
from plait_utils import dataclass


class Recomputed:
    """The calls of a graph whose fake values were right when they were last computed anew: those
    that are still of the same values need it no more."""

    def __init__(self) -> None:
        self._calls: dict[fx.Node, list[object]] = {}

    def has(self, node: fx.Node) -> bool:
        """Whether nothing of a call has changed since it was added."""
        known = self._calls.get(node)
        return known is not None and all(map(operator.is_, known, _parts_of(node)))

    def add(self, node: fx.Node) -> None:
        """Note a call, whose value is right."""
        self._calls[node] = _parts_of(node)


def _parts_of(node: fx.Node) -> list[object]:
    """What the value of a call depends on, and the value: objects, none of which ever changes.

    As many wherever the first three are the same.
    """
    values = [each.meta.get("val") for each in node.all_input_nodes]
    return [node.target, node.args, node.kwargs, node.meta.get("val"), *values]


def verify(
    graph: AtenGraph, *, repropagate: bool = True, recomputed: Recomputed | None = None
) -> None:
    """Check that ``graph`` is what its consumers may rely on.

    Args:
        graph: the graph to check; not changed.
        repropagate: also recompute every fake value and compare (slower: as long as recording).
        recomputed: the calls of this graph that need no such look, to which the others are added.

    Raises:
        VerificationError: the graph is not functional, not in topological order, defines a name
            twice, calls something that is no operator overload, lacks a fake value or has a
            wrong one, refers to inputs or results that do not exist, or returns memory of an
            input or the same memory twice.
    """
    _check_structure(graph)
    _check_surroundings(graph)
    _check_memory(graph)
    if repropagate:
        _check_values(graph, Recomputed() if recomputed is None else recomputed)


def _fail(graph: AtenGraph, node: fx.Node | None, message: str) -> NoReturn:
    text, where = message, None
    if node is not None:
        nodes = list(graph.graph.nodes)
        at = nodes.index(node) if node in nodes else 0
        around = nodes[max(0, at - 2) : at + 3]
        lines = [("→ " if each is node else "  ") + format_node(each) for each in around]
        text = "\n".join([message, *lines])
        line = node.meta.get("source_line")
        where = None if line is None else str(line)
    raise VerificationError(text, where=where, hint="print_aten(graph) shows the whole graph")


def _check_structure(graph: AtenGraph) -> None:
    seen: set[fx.Node] = set()
    names: set[str] = set()
    placeholders_over = False
    last: fx.Node | None = None
    for node in graph.graph.nodes:
        if last is not None and last.op == "output":
            _fail(graph, node, f"%{node.name} comes after the output")
        if node.name in names:
            _fail(graph, node, f"the name %{node.name} is defined twice")
        for used in node.all_input_nodes:
            if used.graph is not graph.graph:
                _fail(graph, node, f"%{node.name} uses %{used.name} of another graph")
            if used not in seen:
                _fail(graph, node, f"%{node.name} uses %{used.name} before it is defined")
        if node.op == "placeholder":
            if placeholders_over:
                _fail(graph, node, f"the placeholder %{node.name} comes after a call")
        else:
            placeholders_over = True
            _check_call(graph, node)
        if node.op != "output" and "in_place" not in node.meta and not _has_value(node):
            _fail(graph, node, f"%{node.name} has no fake value in meta['val']")
        seen.add(node)
        names.add(node.name)
        last = node
    if last is None or last.op != "output":
        _fail(graph, last, "the graph has no output")
    returned = last.args[0]
    if not isinstance(returned, (tuple, list)) or not all(
        isinstance(each, fx.Node) for each in returned
    ):
        _fail(graph, last, "the graph must return a tuple of nodes")


def _check_call(graph: AtenGraph, node: fx.Node) -> None:
    if node.op == "output" or node.target is operator.getitem:
        return
    if node.target in ARITHMETIC and is_number(node.meta.get("val")):
        return
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        _fail(graph, node, f"%{node.name} is a {node.op} of {node.target}, not of an op overload")
    info = op_info(node.target)
    if "in_place" in node.meta:  # the last pass's doing
        return
    if info.kind in (OpKind.MUTATING, OpKind.METADATA):
        _fail(graph, node, f"%{node.name} mutates its arguments ({node.target})")


def _has_value(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        return all(
            each is None or not isinstance(each, torch.Tensor) or _fake(each) for each in value
        )
    return _fake(value)


def _fake(value: object) -> bool:
    return isinstance(value, FakeTensor) or is_number(value)


def _check_surroundings(graph: AtenGraph) -> None:
    inputs, results = len(graph.placeholders), len(graph.results)
    if inputs != len(graph.inputs):
        _fail(graph, None, f"{inputs} placeholders but {len(graph.inputs)} input sources")
    for index, source in enumerate(graph.outputs):
        if isinstance(source, (Computed, ResultView)) and source.result >= results:
            _fail(graph, None, f"output {index} refers to result {source.result} of {results}")
        if isinstance(source, (InputItself, InputView)) and source.input >= inputs:
            _fail(graph, None, f"output {index} refers to input {source.input} of {inputs}")
        if isinstance(source, Repeated) and source.output >= index:
            _fail(
                graph,
                None,
                f"output {index} repeats output {source.output}, which is not before it",
            )
    for mutation in graph.mutations:
        if mutation.input >= inputs or mutation.result >= results:
            _fail(graph, None, f"{mutation} refers to an input or result that is not there")


def _check_memory(graph: AtenGraph) -> None:
    """No result shares memory with another or with an input, but values to be copied back may
    be unwritten inputs."""
    placeholders = {node: index for index, node in enumerate(graph.placeholders)}
    written = {mutation.input for mutation in graph.mutations}
    copied_back = {mutation.result for mutation in graph.mutations}
    own = {(mutation.input, mutation.result) for mutation in graph.mutations}
    taken: dict[object, int] = {}
    for position, node in enumerate(graph.results):
        root = storage_root(node)
        index = placeholders.get(root)
        if position in copied_back:
            if index is not None and index in written and (index, position) not in own:
                _fail(graph, node, f"result {position} is copied back from written input {index}")
            continue
        if index is not None:
            _fail(graph, node, f"result {position} looks at the memory of input {index}")
        memory = root.args if root.target is operator.getitem else root
        if memory in taken:
            _fail(graph, node, f"results {taken[memory]} and {position} share memory")
        taken[memory] = position


def _check_values(graph: AtenGraph, recomputed: Recomputed) -> None:
    mode = graph.fake_mode
    if mode is None:
        return
    for node in graph.graph.nodes:
        if node.op != "call_function" or "in_place" in node.meta or is_number(node.meta["val"]):
            continue
        if recomputed.has(node):
            continue
        fresh = recompute(mode, node)
        if not equal_values(fresh, node.meta["val"]) and not _traced_alike(fresh, node.meta["val"]):
            _fail(
                graph,
                node,
                f"%{node.name} is annotated {format_value(node.meta['val'])}"
                f" but computes {format_value(fresh)}",
            )
        recomputed.add(node)


@dataclass(frozen=True, slots=True)
class Ends:
    """The fake values of a graph's placeholders and results, which passes keep."""

    placeholders: tuple[object, ...]
    results: tuple[object, ...]

    @classmethod
    def of(cls, graph: AtenGraph) -> Ends:
        """Those of a graph."""
        return cls(_values_of(graph.placeholders), _values_of(graph.results))

    def check(self, graph: AtenGraph) -> None:
        """Raises VerificationError where a graph takes or returns something else."""
        output = next(iter(reversed(graph.graph.nodes)), None)
        if output is None or output.op != "output" or not isinstance(output.args[0], (tuple, list)):
            _fail(graph, output, "the graph has no output")
        for kind, wanted, nodes in (
            ("input", self.placeholders, graph.placeholders),
            ("result", self.results, graph.results),
        ):
            if len(nodes) != len(wanted):
                _fail(graph, None, f"the graph has {len(nodes)} {kind}s instead of {len(wanted)}")
            for position, (node, value) in enumerate(zip(nodes, wanted, strict=True)):
                found = node.meta.get("val") if isinstance(node, fx.Node) else node
                if not equal_values(found, value) and not _traced_alike(found, value):
                    told = f"{format_value(found)} instead of {format_value(value)}"
                    known = node if isinstance(node, fx.Node) else None
                    _fail(graph, known, f"{kind} {position} is {told}")


def _values_of(nodes: Sequence[fx.Node]) -> tuple[object, ...]:
    return tuple(node.meta.get("val") for node in nodes)


def recompute(mode: FakeTensorMode, node: fx.Node) -> object:
    """The fake value of a call, computed anew from those of its arguments."""
    args, kwargs = call_values(node.args, node.kwargs)
    if node.target is operator.getitem:
        return operator.getitem(*args)
    assert isinstance(node.target, OpOverload)
    return fake_result(mode, node.target, args, kwargs)


def call_values(args: object, kwargs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """Arguments with fake values for nodes, in plain lists (some kernels write to theirs)."""
    value_args = tuple(_plain_value(each) for each in cast("tuple[object, ...]", args))
    items = cast("dict[str, object]", kwargs).items()
    return value_args, {name: _plain_value(each) for name, each in items}


def _plain_value(argument: object) -> object:
    if isinstance(argument, fx.Node):
        return argument.meta["val"]
    if isinstance(argument, (list, tuple)):
        values = [_plain_value(each) for each in argument]
        return values if isinstance(argument, list) else tuple(values)
    return argument


def _same_number(left: Any, right: Any) -> bool:
    """Whether two symbolic numbers are one; what they are in this call, to ask would fix."""
    expression = getattr(left, "expr", None)
    same = expression is not None and expression == getattr(right, "expr", None)
    return left is right or bool(same)


def _traced_alike(fresh: object, known: object) -> bool:
    """Whether symbolic sizes that are written differently were equal when they were traced.

    That several expressions are one size may follow from what has been noted of the symbols.
    """
    if not isinstance(fresh, torch.Tensor) or not isinstance(known, torch.Tensor):
        return False
    if has_static_sizes(fresh) and has_static_sizes(known):
        return False
    return (fresh.dtype, fresh.device, *_traced_places(fresh)) == (
        *(known.dtype, known.device),
        *_traced_places(known),
    )


def _traced_places(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(map(traced_size, (*tensor.shape, *tensor.stride())))


_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def equal_values(left: object, right: object) -> bool:
    """Whether two fake values agree in shape, dtype, device and placement in memory."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return (
            left.dtype == right.dtype and left.device == right.device and same_strides(left, right)
        )
    if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)):
        return len(left) == len(right) and all(
            equal_values(a, b) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, _SYMBOLIC) and isinstance(right, _SYMBOLIC):
        return type(left) is type(right) and _same_number(left.node, right.node)
    return type(left) is type(right) and left == right
