"""Recurrent layers of many steps: a step is one body, which runs again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import _VF, Tensor

from plait_bytecode_tracer.control import calls
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.tensors import control_flow, recurrent
from plait_bytecode_tracer.tensors.subclasses import dispatch, holds_subclass
from plait_bytecode_tracer.tensors.torch_calls import call_torch
from plait_bytecode_tracer.values.variables import (
    Known,
    SequenceVariable,
    TensorVariable,
    Variable,
)

_MOST_UNROLLED = {False: 128, True: 64}
"""Steps of all layers that are computed one behind the other in a graph, by whether they have
gradients: kernels are for several of them then, but compiling takes some 10 and 35 ms for each."""


def _rolled(function: Callable[..., Any], layers: Callable[..., Any]) -> None:
    """Trace `layers` in the place of a function of torch's where there are many steps."""

    @builtin(function)
    def rule(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
        if holds_subclass([args, kwargs]):
            return dispatch(frame, function, list(args), kwargs)
        if not kwargs and _is_long(frame, args):
            return frame.call(Known(layers), list(args), {})
        return call_torch(frame, function, list(args), kwargs)


def _is_long(frame: Frame, args: Sequence[Variable]) -> bool:
    """Whether arguments are a sequence of many steps, or of an open number, on the CPU, and what
    goes with it; on GPUs other kernels take all steps at once. What torch refuses is none."""
    if len(args) != recurrent.ARGUMENTS or not isinstance(args[2], SequenceVariable):
        return False
    if frame.state.ambient.intercepts or torch._C._functorch.peek_interpreter_stack() is not None:
        return False  # a mode sees the layer's call; transforms may have no rule for it
    tensors = [args[0], args[1], *args[2].items]
    fakes = [each.fake for each in tensors if isinstance(each, TensorVariable)]
    flags = [each.value for each in args[3:] if isinstance(each, Known)]
    if len(flags) != len(args[3:]):
        return False
    has_biases, layers, _, _, both, batch_first = flags
    directions = 2 if both else 1
    count = layers * directions
    if not len(fakes) == len(tensors) == 2 + count * (4 if has_biases else 2):
        return False
    with frame.state.ambient.applied():
        if torch.is_autocast_enabled("cpu") or not _fit(fakes, count, 0 if batch_first else 1):
            return False
    steps = fakes[0].shape[1 if batch_first else 0]
    has_gradients = frame.state.grad_enabled and any(each.requires_grad for each in fakes)
    return not isinstance(steps, int) or bool(steps * count > _MOST_UNROLLED[has_gradients])


def _fit(fakes: Sequence[Tensor], count: int, batch_axis: int) -> bool:
    """Whether a sequence, the states that so many sequences of steps begin with, and their weights
    go with each other."""
    inputs, states, of_inputs, of_state, *_ = fakes
    if not inputs.dim() == states.dim() == 3 or not of_inputs.dim() == of_state.dim() == 2:
        return False
    kinds = {(each.dtype, each.device.type) for each in fakes}
    begun = count, inputs.shape[batch_axis], of_state.shape[1]
    takes = inputs.shape[2] == of_inputs.shape[1]
    return kinds == {(inputs.dtype, "cpu")} and tuple(states.shape) == begun and takes


_rolled(_VF.gru, recurrent.gru)
_rolled(_VF.rnn_tanh, recurrent.rnn_tanh)
_rolled(_VF.rnn_relu, recurrent.rnn_relu)


@builtin(recurrent.each_step)
def each_step(frame: Frame, step: Variable, state: Variable, rows: Variable) -> Variable:
    found = calls.as_operator(frame, lambda: calls.scan(frame, step, [state], [rows], []))
    if isinstance(found, Variable):
        return found
    given = [SequenceVariable([each], tuple) for each in (state, rows)]
    return calls.as_python(frame, control_flow.scan, [step, *given, constant(())], found)
