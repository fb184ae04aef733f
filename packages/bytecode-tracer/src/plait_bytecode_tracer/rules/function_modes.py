"""The stack of torch function modes, and what functions of torch ask of it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._device import DeviceContext

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.attributes import load_attribute
from plait_bytecode_tracer.objects.containers import describe, hold, plain_value
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.statics import class_of
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.ambient import DeviceMode
from plait_bytecode_tracer.tensors.function_modes import is_active
from plait_bytecode_tracer.tensors.subclasses import dispatch, holds_subclass
from plait_bytecode_tracer.values.variables import Known, ObjectVariable, Variable

_c: Any = torch._C


@builtin(_c._push_on_torch_function_stack)
def push(frame: Frame, mode: Variable) -> Variable:
    if not isinstance(mode, Known | ObjectVariable):
        raise TraceBreakError("GB0002", f"a {describe(mode)} that is entered as a mode")
    entered: Variable | DeviceMode = mode
    if class_of(mode) is DeviceContext:
        device = plain_value(load_attribute(frame, mode, "device"))
        if type(device) is not torch.device:
            raise TraceBreakError("GB0002", "a device context without a device")
        entered = DeviceMode(device, mode)
    elif issubclass(class_of(mode), DeviceContext):
        raise TraceBreakError("GB0002", "a device context of another class")
    frame.state.ambient.modes.append(entered)
    return constant(None)


@builtin(_c._pop_torch_function_stack)
def pop(frame: Frame) -> Variable:
    modes = frame.state.ambient.modes
    if not modes:
        raise TraceBreakError("GB0002", "a torch function mode is left that was entered before")
    return _as_mode(modes.pop())


def _as_mode(mode: Variable | DeviceMode) -> Variable:
    """A mode of the stack as the program sees it."""
    if not isinstance(mode, DeviceMode):
        return mode
    if mode.mode is None:
        raise TraceBreakError("GB0002", "the mode that torch makes of a device")
    return mode.mode


def _stack(state: TraceState) -> list[Variable | DeviceMode]:
    """The whole stack, where nothing but modes of the trace is on it."""
    if state.ambient.default_device is not None or torch._C._len_torch_function_stack():
        raise TraceBreakError("GB0002", "the stack of modes with the default device on it")
    return state.ambient.modes


@builtin(_c._len_torch_function_stack)
def length(frame: Frame) -> Variable:
    return constant(len(_stack(frame.state)))


@builtin(_c._get_function_stack_at)
def at(frame: Frame, place: Variable) -> Variable:
    modes, wanted = _stack(frame.state), plain_value(place)
    if type(wanted) is not int or not 0 <= wanted < len(modes):
        raise TraceBreakError("GB0006", "a place that the stack of modes does not have")
    return _as_mode(modes[wanted])


@builtin(_c._has_torch_function_unary, _c._has_torch_function_variadic)
def has_any(frame: Frame, *args: Variable) -> Variable:
    return constant(_asks(frame, args))


@builtin(_c._has_torch_function)
def has_one(frame: Frame, args: Variable) -> Variable:
    return constant(_asks(frame, tuple(elements(frame, args))))


def _asks(frame: Frame, args: tuple[Variable, ...]) -> bool:
    """Whether a function of torch in Python hands its call to a mode or class."""
    if is_active(frame):
        return True
    if any(isinstance(arg, ObjectVariable) and _intercepts(arg) for arg in args):
        raise TraceBreakError("GB0009", "an object with __torch_function__ that is no tensor")
    return holds_subclass(list(args)) and not frame.state.ambient.plain


def _intercepts(value: ObjectVariable) -> bool:
    return hasattr(class_of(value), "__torch_function__")


@builtin(torch.overrides.handle_torch_function)
def handle(
    frame: Frame, function: Variable, relevant: Variable, *args: Variable, **kwargs: Variable
) -> Variable:
    """What a function of torch in Python hands to the mode, or class of an argument."""
    return dispatch(frame, hold(function, Known).value, args, kwargs)
