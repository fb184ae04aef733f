"""What stands for functions with gradients of their own among fake tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import fx
from torch.fx.node import map_arg

from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_bytecode_tracer.tensors.scopes import Scope
    from plait_bytecode_tracer.values.variables import ObjectVariable, TensorVariable, Variable

Given: TypeAlias = "int | torch.Tensor | None"
"""What a backward gives for a tensor: the gradient of an output, by its place; a fake; nothing."""


@dataclass(frozen=True, slots=True)
class Formula:
    """The operators of a backward, which run on fake tensors with the history that these have.

    ``results`` are nodes of the graph that ``steps`` belong to, or None; ``gradients`` those in the
    place of the gradients that the backward is given.
    """

    steps: tuple[fx.Node, ...]
    gradients: tuple[fx.Node, ...]
    results: tuple[fx.Node | None, ...]

    def run(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The gradients that the backward gives for these."""
        values: dict[fx.Node, Any] = dict(zip(self.gradients, given, strict=True))

        def value(node: fx.Node) -> Any:
            return values[node] if node in values else node.meta["val"]

        for node in self.steps:
            args, kwargs = map_arg((node.args, node.kwargs), value)
            if node.op == "call_method":
                values[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                values[node] = node.target(*args, **kwargs)  # type: ignore[operator]  # a function
        return [None if node is None else value(node) for node in self.results]


@dataclass(slots=True)
class FunctionCall:
    """A call of a `torch.autograd.Function` whose forward was traced."""

    cls: type
    args: list[Variable]
    outputs: list[TensorVariable]
    constants: list[int]
    """The places of outputs without gradients."""
    context: ObjectVariable
    """What the forward has kept for the backward."""
    scope: Scope
    """The graph of the forward, which is thrown away."""
    takes_keywords: bool
    given: list[Given] = field(default_factory=list)
    """What the backward gives for the tensors among the arguments, once it was traced."""
    formula: Formula | None = None
    """The same as it computes it where gradients are differentiated, once that was traced."""


class StandIn(torch.autograd.Function):
    """Gives fake tensors the history that outputs of a function have."""

    @staticmethod
    def forward(ctx: Any, call: FunctionCall, *tensors: Any) -> Any:
        outputs = [output.fake for output in call.outputs]
        ctx.mark_non_differentiable(*[outputs[n] for n in call.constants])
        ctx.call, ctx.tensors = call, tensors
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled() and ctx.call.formula is not None:
            return None, *ctx.call.formula.run(gradients)
        if not ctx.call.given:
            return None, *[torch.zeros_like(tensor) for tensor in ctx.tensors]
        given = [gradients[each] if isinstance(each, int) else each for each in ctx.call.given]
        return None, *given
