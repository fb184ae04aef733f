"""Two ways to run a graph as it is: at once, and node by node with every value checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.fx.node import map_arg

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.errors import CheckFailure
from plait_fx_passes.layouts import same_strides
from plait_fx_passes.open_sizes import AtSizes, is_open, runner
from plait_fx_passes.printer import format_node, format_value

Graph: TypeAlias = AtenGraph | fx.GraphModule
Runner: TypeAlias = Callable[..., Any]


def identity(graph: Graph) -> Runner:
    """Run the graph as it is, by torch's own kernels.

    Args:
        graph: takes one tensor for each placeholder: of an :class:`AtenGraph` those are its
            inputs, and what it returns its results, as for any compiler of graphs.
    """
    return runner(graph) if isinstance(graph, AtenGraph) else graph


def checked(graph: Graph) -> Runner:
    """Run the graph node by node and compare each value with what was traced.

    The callable raises :class:`CheckFailure` at the first node whose dtype, sizes, strides or
    device differ from its ``meta["val"]`` (``meta["example_value"]`` where there is none); it
    names the node and the user's line. Nodes without either are not compared.
    """
    module = None if isinstance(graph, AtenGraph) else graph
    nodes = list((graph.runnable() if isinstance(graph, AtenGraph) else graph.graph).nodes)
    if isinstance(graph, AtenGraph) and is_open(graph):
        at_sizes = AtSizes(graph)
        return lambda *inputs: checked(at_sizes.at(inputs))(*inputs)

    def run(*inputs: torch.Tensor) -> Any:
        return Walk(nodes, module, check_value).run(inputs)

    return run


class Walk:
    """Runs the nodes of a graph in order, and frees each value after its last use.

    Args:
        nodes: of the graph, in order.
        module: what its attributes and submodules belong to, if it has any.
        see: called with each node and its value.
    """

    def __init__(
        self,
        nodes: Sequence[fx.Node],
        module: torch.nn.Module | None,
        see: Callable[[fx.Node, object], None],
    ) -> None:
        self._nodes = nodes
        self._module = module
        self._see = see
        self._dead = _last_uses(nodes)
        self._values: dict[fx.Node, Any] = {}

    def run(self, inputs: Sequence[object]) -> Any:
        """What the graph returns."""
        feed = iter(inputs)
        for node in self._nodes:
            if node.op == "output":
                return map_arg(node.args[0], self._values.__getitem__)
            value = next(feed) if node.op == "placeholder" else self._call(node)
            self._values[node] = value
            self._see(node, value)
            for dead in self._dead.get(node, ()):
                del self._values[dead]
        raise AssertionError("a graph without an output was not verified")

    def _call(self, node: fx.Node) -> Any:
        args, kwargs = map_arg((node.args, node.kwargs), self._values.__getitem__)
        if node.op == "call_function":
            function: Any = node.target
            return function(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        found: Any = self._module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        return found if node.op == "get_attr" else found(*args, **kwargs)


def _last_uses(nodes: Sequence[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """The nodes that are not needed after each node."""
    order = {node: position for position, node in enumerate(nodes)}
    dead: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        last = max(node.users, key=order.__getitem__, default=None)
        if last is not None:
            dead.setdefault(last, []).append(node)
    return dead


def check_value(node: fx.Node, actual: object) -> None:
    """Compare a value with its annotation.

    Raises:
        CheckFailure: dtype, sizes, strides or device differ.
    """
    expected = node.meta.get("val", node.meta.get("example_value"))
    problem = None if expected is None else _difference(expected, actual)
    if problem is not None:
        line = node.meta.get("source_line")
        raise CheckFailure(
            f"{format_node(node)}\nwas recorded as {format_value(expected)}"
            f" but computed {_describe(actual)}: {problem}",
            where=None if line is None else str(line),
            hint="the inputs differ from the example inputs, or an operator's fake kernel is wrong",
        )


def _describe(actual: object) -> str:
    return format_value(tuple(actual) if isinstance(actual, (list, tuple)) else actual)


def _difference(expected: object, actual: object) -> str | None:
    if isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        if len(expected) != len(actual):
            return f"{len(actual)} results instead of {len(expected)}"
        differences = map(_difference, expected, actual)
        return next((each for each in differences if each is not None), None)
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        if expected.dtype != actual.dtype:
            return f"dtype {actual.dtype} instead of {expected.dtype}"
        if expected.device != actual.device:
            return f"device {actual.device} instead of {expected.device}"
        if expected._has_symbolic_sizes_strides:
            return None if expected.dim() == actual.dim() else f"{actual.dim()} dimensions"
        if expected.shape != actual.shape:
            return f"sizes {list(actual.shape)} instead of {list(expected.shape)}"
        if not same_strides(expected, actual):
            return f"strides {list(actual.stride())} instead of {list(expected.stride())}"
        return None
    same_kind = isinstance(expected, torch.Tensor) == isinstance(actual, torch.Tensor)
    return None if same_kind else "one is a tensor, the other is not"
