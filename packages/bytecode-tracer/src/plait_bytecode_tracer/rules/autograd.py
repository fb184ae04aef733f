"""`torch.autograd.Function` where no gradients are recorded: its forward, traced."""

from __future__ import annotations

import torch

from plait_bytecode_tracer.containers import hold
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import Frame, constant
from plait_bytecode_tracer.objects import static_attribute
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.variables import Known, ObjectVariable, TensorVariable, Variable


@builtin(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]  # a classmethod
def apply(frame: Frame, owner: Variable, *args: Variable, **kwargs: Variable) -> Variable:
    """`Function.apply`: with gradients it would need the function's own backward."""
    from plait_bytecode_tracer.calls import call

    cls = hold(owner, Known).value
    tensors = [arg for arg in args if isinstance(arg, TensorVariable)]
    if frame.state.grad_enabled and any(tensor.fake.requires_grad for tensor in tensors):
        raise TraceBreakError("GB0002", f"{cls.__name__}.apply, whose gradients are its own")
    forward = constant(_function(cls, "forward"))
    setup = _function(cls, "setup_context")
    if setup is not _function(torch.autograd.Function, "setup_context"):
        return call(frame, forward, list(args), kwargs)
    context = ObjectVariable(torch.autograd.function.FunctionCtx)
    flags = tuple(False for _ in args)
    context.attributes["needs_input_grad"] = constant(flags)
    return call(frame, forward, [context, *args], kwargs)


def _function(cls: type, name: str) -> object:
    static = static_attribute(cls, name)
    return static.__func__ if isinstance(static, staticmethod) else static


@builtin(torch.autograd.grad, torch.autograd.backward)
def differentiate(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
    """One break as a whole: what is inside talks to autograd's engine step by step."""
    raise TraceBreakError("GB0002", "autograd goes backward")
