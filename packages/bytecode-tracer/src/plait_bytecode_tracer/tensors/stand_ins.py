"""What stands for functions with gradients of their own among fake tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from plait_bytecode_tracer.tensors.scopes import Scope
    from plait_bytecode_tracer.values.variables import ObjectVariable, TensorVariable, Variable

Given: TypeAlias = "int | torch.Tensor | None"
"""What a backward gives for a tensor: the gradient of an output, by its place; a fake; nothing."""


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
        if not ctx.call.given:
            return None, *[torch.zeros_like(tensor) for tensor in ctx.tensors]
        given = [gradients[each] if isinstance(each, int) else each for each in ctx.call.given]
        return None, *given
