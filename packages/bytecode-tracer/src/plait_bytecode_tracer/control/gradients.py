"""Gradients of bodies: graphs that run a body with gradients and differentiate it.

What a body computes is computed again where its gradients are asked for; nothing but its operands
is kept.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from plait_bytecode_tracer.control.bodies import Body, is_differentiable
from plait_bytecode_tracer.control.surroundings import with_autograd
from plait_utils import dataclass
from plait_utils.fake import FakeMode

_ENABLE = torch._C._set_grad_enabled


def needing_gradients(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one whose gradient can be asked for."""
    seen = tensor.view_as(tensor)
    return seen if seen.requires_grad else seen.requires_grad_()


def gradient_body(body: Body, wanted: Sequence[bool]) -> Body:
    """What takes the inputs of a body, then the gradients of its results that can have one, and
    returns the gradients of the inputs that are wanted: zeros where nothing depends on them."""
    graph = fx.Graph()
    inputs = [_input(graph, value) for value in body.inputs]
    given = [_input(graph, value) for value in _differentiable(body)]
    places = [place for place, each in enumerate(wanted) if each]
    graph.output(tuple(_differentiated(graph, body, inputs, places, given)))
    return Body(fx.GraphModule(body.module, graph, "Gradient"), places)


@dataclass(frozen=True, slots=True)
class StepGradient:
    """How gradients go back through one step of a loop.

    The step takes `carried` tensors that the one before has made, rows, and inputs that are the
    same in all steps; it returns what it hands on, and further results. Its gradient is a step
    too. It carries the gradients of what was handed on and the sums so far of those of `others`;
    its rows are what the step was given, then the gradients of the further results; it returns
    what it carries and the gradients of `rows`.
    """

    body: Body
    floats: tuple[int, ...]
    """The inputs that are carried and have gradients."""
    rows: tuple[int, ...]
    """The rows whose gradients are wanted."""
    others: tuple[int, ...]
    """The inputs, the same in all steps, whose gradients are wanted."""

    @property
    def carried(self) -> int:
        """How many tensors the gradient carries."""
        return len(self.floats) + len(self.others)

    def start(self, given: Sequence[torch.Tensor], inputs: Sequence[Any]) -> list[torch.Tensor]:
        """What the gradient begins with: `given` are the gradients of what the last step handed
        on, and `inputs` those of the loop, whose places are those of the step's."""
        return [*given, *(torch.zeros_like(inputs[place]) for place in self.others)]


def step_gradient(body: Body, carried: int, rows: int, wanted: Sequence[bool]) -> StepGradient:
    """The gradient of a step with these numbers of carried inputs and of rows."""
    floats = [place for place in range(carried) if is_differentiable(body.inputs[place])]
    chosen = [place for place, each in enumerate(wanted) if each and place >= carried]
    row_places = [place for place in chosen if place < carried + rows]
    others = [place for place in chosen if place >= carried + rows]
    graph = fx.Graph()
    handed = [_input(graph, body.inputs[place]) for place in floats]
    sums = [_input(graph, body.inputs[place]) for place in others]
    before = [_input(graph, value) for value in body.inputs[: carried + rows]]
    further = [_input(graph, v) for v in body.results[carried:] if is_differentiable(v)]
    same = [_input(graph, value) for value in body.inputs[carried + rows :]]
    places = [*floats, *others, *row_places]
    found = _differentiated(graph, body, [*before, *same], places, [*handed, *further])
    back, parts, of_rows = _split(found, len(floats), len(others))
    totals = [graph.call_function(torch.add, pair) for pair in zip(sums, parts, strict=True)]
    graph.output((*back, *totals, *of_rows))
    here = {place: number for number, place in enumerate((*floats, *others))}
    first = len(here)
    like = [here.get(place, first + place) for place in places]
    made = Body(fx.GraphModule(body.module, graph, "Gradient"), like)
    return StepGradient(made, tuple(floats), tuple(row_places), tuple(others))


def differentiable_again(body: Body) -> fx.GraphModule:
    """A body that may differentiate inside, of which gradients can be had."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in body.module.graph.nodes:
        copies[node] = _copied(graph, node, copies)
    return fx.GraphModule(body.module, graph, "Differentiable")


def returning_inputs(body: Body, count: int) -> Body:
    """A body that returns copies of its first inputs too, behind its results."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in body.module.graph.nodes:
        if node.op != "output":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    inputs = list(graph.find_nodes(op="placeholder"))[:count]
    (output,) = body.module.graph.find_nodes(op="output")
    results = fx.node.map_arg(output.args[0], copies.__getitem__)
    graph.output((*results, *(graph.call_function(torch.clone, (each,)) for each in inputs)))
    module = fx.GraphModule(body.module, graph, "Returning")
    return Body(module, [*body.described, *range(count)])


def _split(values: Sequence[fx.Node], *counts: int) -> list[Sequence[fx.Node]]:
    parts: list[Sequence[fx.Node]] = []
    for count in counts:
        parts.append(values[:count])
        values = values[count:]
    return [*parts, values]


def _differentiable(body: Body) -> list[torch.Tensor]:
    return [each for each in body.results if is_differentiable(each)]


def _input(graph: fx.Graph, value: Any) -> fx.Node:
    node = graph.placeholder(f"arg{len(graph.nodes)}")
    node.meta["val"] = value
    return node


def _differentiated(
    graph: fx.Graph,
    body: Body,
    inputs: Sequence[fx.Node],
    places: Sequence[int],
    given: Sequence[fx.Node],
) -> list[fx.Node]:
    """The gradients of a body's inputs at `places`, from those of its results."""
    graph.call_function(_ENABLE, (True,))
    taken = [*inputs]
    for place in places:
        taken[place] = graph.call_function(needing_gradients, (inputs[place],))
    waiting = iter(taken)
    copies: dict[fx.Node, fx.Node] = {}
    results: Sequence[Any] = ()
    for node in body.module.graph.nodes:
        if node.op == "placeholder":
            copies[node] = next(waiting)
        elif node.op == "output":
            results = fx.node.map_arg(node.args[0], copies.__getitem__)
        else:
            copies[node] = _copied(graph, node, copies)
    graph.call_function(_ENABLE, (True,))
    pairs = zip(_differentiable_of(body, results), given, _depends(body, places), strict=True)
    used = [(result, gradient) for result, gradient, depends in pairs if depends]
    wanted = [taken[place] for place in places]
    if not used or not wanted:
        return [graph.call_function(torch.zeros_like, (each,)) for each in wanted]
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    outputs, gradients = ([*each] for each in zip(*used, strict=True))
    found = graph.call_function(torch.autograd.grad, (outputs, wanted, gradients), options)
    parts = [graph.call_function(operator.getitem, (found, n)) for n in range(len(wanted))]
    # A gradient may be one that is given; what an operator returns shares memory with nothing.
    return [graph.call_function(torch.clone, (part,)) for part in parts]


def _differentiable_of(body: Body, results: Sequence[Any]) -> list[Any]:
    pairs = zip(results, body.results, strict=True)
    return [result for result, value in pairs if is_differentiable(value)]


def _copied(graph: fx.Graph, node: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """A copy of a node in another graph; what it differentiates can be differentiated there."""
    made = graph.node_copy(node, copies.__getitem__)
    if node.op != "placeholder":
        made.meta.pop("val", None)
    if node.target is torch.autograd.grad:
        made.kwargs = {**made.kwargs, "create_graph": True}
    return made


def _depends(body: Body, places: Sequence[int]) -> list[bool]:
    """Which results that can have gradients have some where the inputs at `places` have."""
    mode = FakeMode()
    with _disable_current_modes(), with_autograd(), mode, torch.enable_grad():
        inputs = [*map(_known, body.inputs)]
        for place in places:
            inputs[place].requires_grad_()
        found = differentiable_again(body).forward(*inputs)
    return [each.requires_grad for each in _differentiable_of(body, found)]


def _known(value: Any) -> Any:
    """A new input of sizes that are known, for one whose sizes may be symbolic."""
    if isinstance(value, torch.Tensor):
        shape = [*map(_hint, value.shape)]
        return torch.empty(shape, dtype=value.dtype, device=value.device)
    return _hint(value)


def _hint(size: Any) -> Any:
    return size.node.hint if isinstance(size, torch.SymInt | torch.SymFloat) else size
