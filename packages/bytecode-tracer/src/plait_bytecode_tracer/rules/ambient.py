"""Modes of torch that the traced code switches: autocast, inference mode, devices, flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.objects.containers import hold, plain_value
from plait_bytecode_tracer.rules.registry import Builtin, builtin
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.ambient import (
    GRADIENTS_AFTER,
    SETTINGS,
    Setting,
    autocast_nesting,
    bound,
    enter_inference_mode,
    leave_inference_mode,
)
from plait_bytecode_tracer.values.variables import (
    ContextVariable,
    Known,
    RecordVariable,
    Variable,
)

# Settings that a function reads and another one sets.


def _value(state: TraceState, setting: Setting, place: int, keys: tuple[Any, ...]) -> Any:
    """One of a setting's values: as the trace has set it, else as it is, guarded."""
    known = state.ambient.values.get((setting.setter, keys))
    if known is not None:
        return known[place]
    getter = bound(setting.getters[place], keys)
    value = getter()
    if setting.setter is torch.set_autocast_cache_enabled:
        value = state.ambient.cache
    text = f"{setting.getters[place].__name__}({', '.join(map(repr, keys))}) is {value!r}"
    state.require(None, Kind.MODE, Mode(getter, value), text)
    return value


def _keys(setting: Setting, values: list[Any]) -> tuple[Any, ...]:
    """The arguments that choose what is set; without a device type it is that of CUDA."""
    if setting.keys and not values:
        return ("cuda",)
    if setting.keys and not isinstance(values[0], str):
        raise TraceBreakError("GB0006", f"{values[0]!r} as a device type")
    return tuple(values[: setting.keys])


def _reader(setting: Setting, place: int) -> Builtin:
    def read(frame: Frame, *args: Variable) -> Variable:
        keys = _keys(setting, [plain_value(arg) for arg in args])
        return constant(_value(frame.state, setting, place, keys))

    return read


def _writer(setting: Setting) -> Builtin:
    def write(frame: Frame, *args: Variable) -> Variable:
        given = [plain_value(arg) for arg in args]
        count = len(setting.kinds)
        keys, values = _keys(setting, given[:-count]), tuple(given[-count:])
        expected = zip(values, setting.kinds, strict=False)
        if len(values) != count or any(type(value) is not kind for value, kind in expected):
            name = setting.setter.__name__
            raise TraceBreakError("GB0006", f"{name} with {', '.join(map(repr, given))}")
        if setting.setter is torch.set_default_dtype and not values[0].is_floating_point:
            raise TraceBreakError("GB0006", f"{values[0]} as the default dtype")
        state = frame.state
        now = tuple(_value(state, setting, place, keys) for place in range(count))
        ambient = state.ambient
        ambient.before.setdefault((setting.setter, keys), now)
        ambient.values[setting.setter, keys] = values
        ambient.is_switched = True
        if values != now:
            _switch(frame, setting.setter, (*keys, *values))
        return constant(None)

    return write


def _switch(frame: Frame, target: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    node = frame.state.graph.call_function(target, args)
    frame.state.mark(node)
    return node


for _setting in SETTINGS.values():
    builtin(_setting.setter)(_writer(_setting))
    for _place, _getter in enumerate(_setting.getters):
        builtin(_getter)(_reader(_setting, _place))


@builtin(torch.clear_autocast_cache)
def clear_autocast_cache(frame: Frame) -> Variable:
    _switch(frame, torch.clear_autocast_cache, ())
    return constant(None)


@builtin(torch.autocast_increment_nesting)
def autocast_increment_nesting(frame: Frame) -> Variable:
    return _nest(frame, 1)


@builtin(torch.autocast_decrement_nesting)
def autocast_decrement_nesting(frame: Frame) -> Variable:
    return _nest(frame, -1)


def _nest(frame: Frame, change: int) -> Variable:
    """Open or close a block of autocast: when the outermost closes, its cache is cleared."""
    state = frame.state
    level = autocast_nesting()
    state.require(None, Kind.MODE, Mode(autocast_nesting, level), f"{level} autocast blocks")
    state.ambient.nesting += change
    return constant(level + state.ambient.nesting)


# Inference mode.


@builtin(torch.is_inference_mode_enabled)
def is_inference_mode_enabled(frame: Frame) -> Variable:
    return constant(frame.state.ambient.inference)


@builtin(torch._C._InferenceMode)
def inference_mode(frame: Frame, enabled: Variable) -> Variable:
    wanted = plain_value(enabled)
    if type(wanted) is not bool:
        raise TraceBreakError("GB0006", f"inference mode {wanted!r}, which is no bool")
    return ContextVariable(torch._C._InferenceMode, (wanted,))


@builtin(torch._C.DisableTorchFunctionSubclass)
def without_torch_function(frame: Frame) -> Variable:
    return ContextVariable(torch._C.DisableTorchFunctionSubclass)


@builtin(torch._C.DisableTorchFunction)
def without_modes(frame: Frame) -> Variable:
    return ContextVariable(torch._C.DisableTorchFunction)


def context_method(frame: Frame, owner: ContextVariable, name: str) -> Variable:
    """Enter or leave a guard object of torch."""
    is_inference = owner.make is torch._C._InferenceMode
    ambient = frame.state.ambient
    if name == "__enter__":
        (_enter_inference if is_inference else _enter_plain)(frame, owner)
        ambient.open.append(owner)
        return constant(None)
    if not ambient.open or ambient.open[-1] is not owner:
        raise TraceBreakError("GB0006", "modes that are not left in order")
    ambient.open.pop()
    if is_inference:
        left = _switch(frame, leave_inference_mode, (owner.node,))
        frame.state.grad_enabled, ambient.inference = owner.before
        left.meta[GRADIENTS_AFTER] = frame.state.grad_enabled
    else:
        ambient.plain -= 1
        ambient.modes_off -= owner.make is torch._C.DisableTorchFunction
    return constant(None)


def _enter_inference(frame: Frame, owner: ContextVariable) -> None:
    """Inference mode switches gradients as well."""
    state, enabled = frame.state, bool(owner.args[0])
    if state.ambient.inference and not enabled:  # the graph is called in the mode that it begins in
        raise TraceBreakError("GB0006", "inference mode that is left for a while")
    owner.before = state.grad_enabled, state.ambient.inference
    owner.node = _switch(frame, enter_inference_mode, (enabled,))
    state.grad_enabled, state.ambient.inference = not enabled, enabled
    owner.node.meta[GRADIENTS_AFTER] = state.grad_enabled
    state.ambient.is_switched = True


def _enter_plain(frame: Frame, owner: ContextVariable) -> None:
    frame.state.ambient.plain += 1
    frame.state.ambient.modes_off += owner.make is torch._C.DisableTorchFunction


# Regions of the profiler.


def _is_profiling() -> bool:
    return bool(torch._C._autograd._profiler_enabled())


@builtin(torch.ops.profiler._record_function_enter_new)
def enter_region(frame: Frame, *args: Variable) -> Variable:
    """A named region: nothing at all while no profiler runs."""
    if _is_profiling():
        raise TraceBreakError("GB0002", "a region that is being profiled")
    frame.state.require(None, Kind.MODE, Mode(_is_profiling, False), "no profiler is running")
    return RecordVariable(list(args))


@builtin(torch.ops.profiler._record_function_exit._RecordFunction)
def leave_region(frame: Frame, record: Variable) -> Variable:
    if isinstance(record, Known):  # entered before a break; no profiler was running then or is now
        enter_region(frame)
        state = frame.state
        state.deferred.append(
            (constant(torch.ops.profiler._record_function_exit._RecordFunction), [record], {})
        )
        return constant(None)
    hold(record, RecordVariable)
    return constant(None)
