"""Functions with gradients of their own, by the graphs of their forward and their backward.

Most are called as they are, and what they run is seen when the graph is recorded. Kernels that they
launch are not seen there, so these functions run as they were traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.tensors.stand_ins import Formula, FunctionCall
from plait_bytecode_tracer.values.variables import Known, TensorVariable
from plait_utils.plain_writers import NAMESPACE


def launches_kernels(graph: fx.Graph) -> bool:
    """Whether a graph launches kernels of the program's."""
    return any(getattr(node.target, "namespace", "") == NAMESPACE for node in graph.nodes)


class ReplayedFunction(torch.nn.Module):
    """A call of a `torch.autograd.Function`, as it was traced.

    It is given the tensors among the function's arguments, then what else the function reads.
    """

    def __init__(self, call: FunctionCall, formula: Formula, nodes: Sequence[fx.Node]) -> None:
        super().__init__()
        scope = call.scope
        given = [scope.local(a.node) for a in call.args if isinstance(a, TensorVariable)]
        others = [each for each in scope.free.values() if each not in given]
        self.count = len(given)
        self.outer = [*map(_outer(scope.free), (*given, *others))]
        outputs = [scope.local(output.node) for output in call.outputs]
        if any(torch.empty_like(o.fake).stride() != o.fake.stride() for o in call.outputs):
            raise TraceBreakError(
                "GB0002", f"{call.cls.__name__}.apply, which gives a view with gaps"
            )
        computed = [node for node in nodes if node.op != "placeholder"]
        known = {*given, *others, *computed}
        read = [n for step in formula.steps for n in step.all_input_nodes]
        read += [each for each in formula.results if each is not None]
        kept = [each for each in dict.fromkeys(read) if each in known]
        self.outputs = len(outputs)
        self.constants = call.constants
        self.is_tuple = cast(Known, call.context.attributes["is_tuple"]).value
        holder = scope.holder
        self.run_forward = _module(holder, [*given, *others], computed, [*outputs, *kept])
        inputs = [*kept, *formula.gradients]
        self.run_backward = _module(holder, inputs, formula.steps, formula.results)

    def forward(self, *inputs: Any) -> Any:
        """What the function returns."""
        apply: Any = _Replay.apply
        found = apply(self, *inputs)
        return found if self.is_tuple else found[0]


def _outer(free: dict[fx.Node, fx.Node]) -> Any:
    return {inner: outer for outer, inner in free.items()}.__getitem__


def _module(
    holder: torch.nn.Module,
    inputs: Sequence[fx.Node],
    steps: Sequence[fx.Node],
    results: Sequence[fx.Node | None],
) -> fx.GraphModule:
    """A graph of its own of some nodes; an input that comes twice is read where it comes first."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        made = graph.placeholder(f"given{len(graph.nodes)}")
        copies.setdefault(node, made)
    for node in steps:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(None if each is None else copies[each] for each in results))
    return fx.GraphModule(holder, graph, "Body")


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: ReplayedFunction, *inputs: Any) -> Any:
        results = call.run_forward(*inputs)
        outputs, kept = results[: call.outputs], results[call.outputs :]
        ctx.call, ctx.others = call, len(inputs) - call.count
        ctx.strides = [each.stride() for each in outputs]
        ctx.save_for_backward(*[each for each in kept if isinstance(each, torch.Tensor)])
        ctx.numbers = [None if isinstance(each, torch.Tensor) else each for each in kept]
        ctx.mark_non_differentiable(*[outputs[n] for n in call.constants])
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        tensors = iter(ctx.saved_tensors)
        kept = [next(tensors) if number is None else number for number in ctx.numbers]
        given = map(_laid_out, gradients, ctx.strides)
        found = ctx.call.run_backward(*kept, *given)
        return None, *found, *[None] * ctx.others


def _laid_out(gradient: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A gradient with the strides that it was traced with: those of the output."""
    if gradient.stride() == strides:
        return gradient
    return gradient.new_empty_strided(gradient.shape, strides).copy_(gradient)
