"""A graph with the inputs that it fails for; parameters and constants are inputs, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import Argument
from torch.utils._pytree import tree_leaves

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.layouts import span
from plait_fx_passes.tools.running import Walk
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Program:
    """A flat graph, which returns a tuple of nodes, and one value for each placeholder."""

    graph: fx.Graph
    inputs: tuple[Any, ...]

    @classmethod
    def of(cls, graph: AtenGraph | fx.GraphModule, inputs: Sequence[Any]) -> Program:
        """The program of a graph without submodules.

        Args:
            graph: an ATen graph takes one tensor for each placeholder.
            inputs: not changed.
        """
        module = graph.module() if isinstance(graph, AtenGraph) else graph
        made, copies, values = fx.Graph(), dict[fx.Node, fx.Node](), list(inputs)
        for node in module.graph.find_nodes(op="placeholder"):
            copies[node] = made.placeholder(node.name)
        for node in module.graph.find_nodes(op="get_attr"):
            copies[node] = made.placeholder(node.name)
            values.append(_attribute(module, str(node.target)))
        for node in module.graph.nodes:
            if node.op not in ("placeholder", "get_attr", "output"):
                copies[node] = made.node_copy(node, copies.__getitem__)
        (output,) = module.graph.find_nodes(op="output")
        leaves = [each for each in tree_leaves(output.args[0]) if isinstance(each, fx.Node)]
        made.output(cast(Argument, tuple(dict.fromkeys(copies[each] for each in leaves))))
        return cls(made, tuple(values))

    @property
    def calls(self) -> list[fx.Node]:
        """The nodes that compute."""
        return [n for n in self.graph.nodes if n.op not in ("placeholder", "output")]

    @property
    def results(self) -> tuple[fx.Node, ...]:
        """What the program returns."""
        last: fx.Node = next(iter(reversed(self.graph.nodes)))
        return cast("tuple[fx.Node, ...]", last.args[0])

    def module(self) -> fx.GraphModule:
        """What runs the program."""
        return fx.GraphModule(torch.nn.Module(), self.graph)

    def fresh_inputs(self) -> list[Any]:
        """Copies of the inputs, for one run."""
        return [copied(each) for each in self.inputs]

    def values(self) -> dict[fx.Node, Any]:
        """What each node computes; copies, made when it is computed."""
        found: dict[fx.Node, Any] = {}

        def see(node: fx.Node, value: Any) -> None:
            found[node] = copied(value)

        Walk(list(self.graph.nodes), None, see).run(self.fresh_inputs())
        return found

    def rebuilt(
        self,
        results: Sequence[fx.Node],
        *,
        given: dict[fx.Node, Any] | None = None,
        instead: dict[fx.Node, fx.Node] | None = None,
        change: Callable[[Any], Any] | None = None,
        inputs: Sequence[Any] | None = None,
    ) -> Program:
        """The program that is left of this one.

        Args:
            results: what it returns.
            given: nodes that become inputs, with their values.
            instead: nodes whose users take another node.
            change: applied to the plain arguments of calls.
            inputs: in the place of this program's.
        """
        given, instead = given or {}, instead or {}

        def chosen(node: fx.Node) -> fx.Node:
            while node in instead:
                node = instead[node]
            return node

        needed = _needed([chosen(each) for each in results], given, chosen)
        made, copies, values = fx.Graph(), dict[fx.Node, fx.Node](), list[Any]()
        places = self.graph.find_nodes(op="placeholder")
        own = dict(zip(places, self.inputs if inputs is None else inputs, strict=True))
        for node in self.graph.nodes:
            if node in needed and (node in own or node in given):
                copies[node] = made.placeholder(node.name)
                values.append(own[node] if node in own else given[node])
        for node in self.graph.nodes:
            if node in needed and node not in copies and node.op != "output":
                copies[node] = made.node_copy(node, lambda each: copies[chosen(each)])
                copies[node].meta = {}
                if change is not None:
                    copies[node].args = tuple(change(each) for each in copies[node].args)
        made.output(cast(Argument, tuple(dict.fromkeys(copies[chosen(n)] for n in results))))
        return Program(made, tuple(values))


def _needed(
    results: Sequence[fx.Node], given: dict[fx.Node, Any], chosen: Callable[[fx.Node], fx.Node]
) -> set[fx.Node]:
    """What the results are computed from, and calls that write to any of that."""
    found: set[fx.Node] = set()

    def add(nodes: Sequence[fx.Node]) -> None:
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += [] if node in given else map(chosen, node.all_input_nodes)

    add(results)
    writes = [node for node in (results[0].graph.nodes if results else ()) if _writes(node)]
    count = -1
    while count != len(found):
        count = len(found)
        for node in writes:
            if node not in found and any(chosen(each) in found for each in node.all_input_nodes):
                add([node])
    return found


def _writes(node: fx.Node) -> bool:
    name = str(getattr(node.target, "__name__", node.target)).split(".")[0]
    return node.op.startswith("call") and (
        (name.endswith("_") and not name.endswith("__")) or name in ("setitem", "__setitem__")
    )


def copied(value: Any) -> Any:
    """The value, or copies of its tensors that lie in memory as they do."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(copied, value))
    if not isinstance(value, torch.Tensor):
        return value
    with torch.no_grad():
        start, end = span(value)
        whole = value.detach().as_strided((end - start,), (1,), start).clone()
        made = whole.as_strided(value.shape, value.stride(), 0).detach()
    return made.requires_grad_(value.requires_grad)


def _attribute(module: torch.nn.Module, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found
