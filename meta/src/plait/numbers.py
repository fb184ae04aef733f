"""Numbers that differ from call to call: computed in Python before a compiled graph runs.

A learning rate that a schedule changes, or a step that an optimizer counts, is a float input of a
captured graph, and what is computed of floats alone are nodes of it. These become a function of
their own; the graph takes what they come to, and the compiled program reads it when it runs. Under
gradients it reads it from tensors: autograd's nodes take nothing else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from plait.record import Runner
from plait_utils import dataclass

if TYPE_CHECKING:
    import torch
    from torch import fx

_ARITHMETIC = frozenset(
    (
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.pow),
        *(operator.neg, operator.pos, operator.abs),
    )
)
"""What is computed of numbers apart from the graph: as Python does it."""


@dataclass(frozen=True, slots=True)
class Split:
    """A graph without its arithmetic on numbers.

    `graph` takes the captured graph's inputs that are not floats, in order, then the floats that
    `compute` returns, given those of the captured graph in order.
    """

    graph: fx.GraphModule
    compute: Callable[..., Sequence[float]]
    arithmetic: fx.Graph
    """What `compute` runs."""


def split_numbers(captured: fx.GraphModule) -> Split | None:
    """The graph and its numbers apart; None if it takes no float, or has other uses of one."""
    given = [node for node in captured.graph.nodes if node.op == "placeholder" and is_float(node)]
    numbers = _numbers(captured, given)
    used = [node for node in numbers if any(user not in numbers for user in node.users)]
    if not given or any(_leaves(node) or not is_float(node) for node in used):
        return None
    computing = _computing(given, numbers, used)
    return Split(_tensors(captured, numbers, used), computing.forward, computing.graph)


@dataclass(frozen=True, slots=True)
class Held:
    """A graph that reads its numbers from tensors of one element, with its examples."""

    graph: fx.GraphModule
    examples: tuple[torch.Tensor, ...]
    floats: tuple[int, ...]

    def given(self, run: Runner) -> Runner:
        """`run`, given floats as the captured graph is."""
        from torch import float64, scalar_tensor

        def call(*inputs: Any) -> Any:
            held = list(inputs)
            for n in self.floats:
                held[n] = scalar_tensor(held[n], dtype=float64, device="cpu")
            return run(*held)

        return call


def numbers_in_tensors(captured: fx.GraphModule, examples: Sequence[Any]) -> Held:
    """The graph, with tensors in the place of the floats among its examples."""
    import torch
    from torch import fx

    from plait_utils.fake import is_fake

    mode = next(each for each in examples if is_fake(each)).fake_mode
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    placeholders = captured.graph.find_nodes(op="placeholder")
    floats = tuple(n for n, each in enumerate(examples) if type(each) is float)
    with mode:
        held = {n: torch.empty((), dtype=torch.float64) for n in floats}
    for n, node in enumerate(placeholders):
        copies[node] = graph.node_copy(node)
        copies[node].meta["val"] = held.get(n, node.meta.get("val"))
    for n in floats:
        node = placeholders[n]
        copies[node] = graph.call_method("item", (copies[node],))
        copies[node].meta = dict(node.meta)
    for node in captured.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    made = fx.GraphModule(captured, graph, type(captured).__name__)
    return Held(made, tuple(held.get(n, each) for n, each in enumerate(examples)), floats)


def is_float(node: fx.Node) -> bool:
    """Whether a node of a captured graph is a float."""
    import torch

    return isinstance(node.meta.get("val"), float | torch.SymFloat)


def _numbers(captured: fx.GraphModule, given: Sequence[fx.Node]) -> dict[fx.Node, None]:
    """The numbers that follow from given floats alone, in order."""
    found = dict.fromkeys(given)
    for node in captured.graph.nodes:
        if node.target in _ARITHMETIC:
            operands = node.all_input_nodes
            if operands and all(each in found for each in operands):
                found[node] = None
    return found


def _leaves(node: fx.Node) -> bool:
    """Whether the program returns a number, which a graph of tensors does not."""
    return any(user.op == "output" for user in node.users)


def _computing(
    given: Sequence[fx.Node], numbers: dict[fx.Node, None], used: Sequence[fx.Node]
) -> fx.GraphModule:
    """A Python function of the given numbers that returns the used ones."""
    import torch
    from torch import fx

    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in (*given, *(each for each in numbers if each not in set(given))):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in used))
    return fx.GraphModule(torch.nn.Module(), graph)


def _tensors(
    captured: fx.GraphModule, numbers: dict[fx.Node, None], used: Sequence[fx.Node]
) -> fx.GraphModule:
    """The graph without the arithmetic, the used numbers its last inputs."""
    from torch import fx

    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    nodes = list(captured.graph.nodes)
    own = [node for node in nodes if node.op == "placeholder" and node not in numbers]
    for node in own:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    for node in used:
        copies[node] = graph.placeholder(f"number_{len(copies) - len(own)}")
        copies[node].meta = {**node.meta}
    for node in nodes:
        if node not in copies and node not in numbers:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(captured, graph, type(captured).__name__)
