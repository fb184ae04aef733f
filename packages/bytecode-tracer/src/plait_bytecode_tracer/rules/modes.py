"""Modes that calls read and set: gradients, context variables."""

from __future__ import annotations

import contextvars

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import ABSENT
from plait_bytecode_tracer.objects.containers import hold, plain_value
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.tensors.asking import asks_for_compiler
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import Known, TokenVariable, Variable


@builtin(torch.is_grad_enabled)
def is_grad_enabled(frame: Frame) -> Variable:
    if frame.state.ambient.is_undecided:
        raise TraceBreakError(
            "GB0002", "whether gradients are on, in code that runs with and without"
        )
    return constant(frame.state.grad_enabled)


@builtin(torch._C._set_grad_enabled)
def set_grad_enabled(frame: Frame, enabled: Variable) -> Variable:
    """Switch gradients in the trace and in the graph."""
    wanted = plain_value(enabled)
    if type(wanted) is not bool:
        raise TraceBreakError("GB0006", f"gradients are set to {wanted!r}, which is no bool")
    if wanted is not frame.state.grad_enabled or frame.state.ambient.is_undecided:
        frame.state.grad_enabled = wanted
        frame.state.ambient.is_switched = True
        node = frame.state.graph.call_function(torch._C._set_grad_enabled, (wanted,))
        frame.state.mark(node)
    return constant(None)


@builtin(torch.compiler.is_compiling, torch.compiler.is_exporting)
def is_compiling(frame: Frame) -> Variable:
    """False, as in eager: a program that asks must not compute something else when compiled."""
    return constant(False)


@builtin(torch.compiler.is_dynamo_compiling)
def is_dynamo_compiling(frame: Frame) -> Variable:
    """False too, but in functions of torch's that have a compiler trace what they call."""
    return constant(asks_for_compiler(frame.function.code, frame.function.globals))


def _context_variable(value: Variable) -> contextvars.ContextVar[object]:
    found = hold(value, Known).value
    if not isinstance(found, contextvars.ContextVar):
        raise TraceBreakError("GB0009", "a context variable that is none")
    return found


def _current(frame: Frame, variable: contextvars.ContextVar[object]) -> Variable | None:
    """What a context variable holds now; None where it holds nothing."""
    state = frame.state
    if id(variable) in state.world.context:
        return state.world.context[id(variable)][1]
    value = variable.get(ABSENT)
    unset = state.constants.name(ABSENT)
    code = f"{state.constants.name(variable)}.get({unset})"
    source = Source(code, f"{variable.name}.get()")
    if value is ABSENT:
        state.guard(source, f"{{}} is {unset}", f"{variable.name} is not set")
        return None
    return state.wrap(value, source)


@builtin(contextvars.ContextVar.get)
def get(frame: Frame, owner: Variable, default: Variable | None = None) -> Variable:
    variable = _context_variable(owner)
    found = _current(frame, variable)
    if found is not None:
        return found
    if default is None:
        fails(LookupError, variable)
    return default


@builtin(contextvars.ContextVar.set)
def set_(frame: Frame, owner: Variable, value: Variable) -> Variable:
    variable = _context_variable(owner)
    token = TokenVariable(variable, _current(frame, variable))
    frame.state.world.context[id(variable)] = (variable, value)
    return token


@builtin(contextvars.ContextVar.reset)
def reset(frame: Frame, owner: Variable, token: Variable) -> Variable:
    variable, made = _context_variable(owner), hold(token, TokenVariable)
    if made.variable is not variable:
        raise TraceBreakError("GB0006", "a token of another context variable")
    frame.state.world.context[id(variable)] = (variable, made.previous)
    return constant(None)
