"""Hooks of modules that see gradients: where gradients are recorded, each is one break."""

from __future__ import annotations

from typing import Any

from torch.utils.hooks import BackwardHook

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.rules.registry import Builtin, builtin
from plait_bytecode_tracer.values.variables import SequenceVariable, TensorVariable, Variable


def _setting_up(method: Any) -> Builtin:
    """It puts a node into autograd's graph and hooks that, which a graph of ours cannot hold."""

    def rule(frame: Frame, owner: Variable, args: Variable) -> Variable:
        from plait_bytecode_tracer.frames.calls import inline

        if frame.state.grad_enabled and _requires_grad(args):
            raise TraceBreakError("GB0002", "a hook on the gradients of a module")
        return inline(frame, method, [owner, args], {})

    return rule


def _requires_grad(value: Variable) -> bool:
    if isinstance(value, SequenceVariable):
        return any(map(_requires_grad, value.items))
    return isinstance(value, TensorVariable) and value.fake.requires_grad


for _method in (BackwardHook.setup_input_hook, BackwardHook.setup_output_hook):
    builtin(_method)(_setting_up(_method))
