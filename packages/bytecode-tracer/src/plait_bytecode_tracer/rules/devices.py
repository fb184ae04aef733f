"""The devices on which tensors are made: contexts of devices, and the default one."""

from __future__ import annotations

from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.rules.registry import builtin, named_rule
from plait_bytecode_tracer.tensors.ambient import DefaultDevice, DeviceMode
from plait_bytecode_tracer.tensors.function_modes import through_mode
from plait_bytecode_tracer.values.variables import Known, Variable


def device_method(frame: Frame, owner: Known, name: str) -> Variable:
    """Enter or leave `with torch.device(...)`: what is made inside is told the device."""
    modes = frame.state.ambient.modes
    if name == "__enter__":
        # Torch makes a mode of the device, which asks the modes that there are for it.
        asked = through_mode(frame, torch.device, [owner], {})
        device = owner.value if asked is None else plain_value(asked)
        if type(device) is not torch.device:
            raise TraceBreakError("GB0002", "a mode that makes no device of one")
        modes.append(DeviceMode(device))
        return owner
    if not modes:
        raise TraceBreakError("GB0002", "a device context that was entered before is left")
    modes.pop()
    return constant(None)


@builtin(torch.cuda._exchange_device, torch.cuda._maybe_exchange_device)
def exchange_device(frame: Frame, device: Variable) -> Variable:
    """Enter or leave `with torch.cuda.device(...)`, of the device that is the current one."""
    index = plain_value(device)
    if type(index) is not int:
        raise TraceBreakError("GB0002", f"{index!r} as the current device")
    if index < 0:
        return constant(-1)
    if torch.cuda.current_device() != index:
        raise TraceBreakError("GB0002", f"cuda:{index} as the current device")
    is_current = Mode(torch.cuda.current_device, index)
    frame.state.require(None, Kind.MODE, is_current, f"cuda:{index} is the current device")
    return constant(index)


@named_rule("torch.cuda.graphs", "is_current_stream_capturing")
def is_current_stream_capturing(frame: Frame) -> Variable:
    """Whether a CUDA graph is being captured; it raises where there is no device to ask."""
    ask: Any = torch.cuda.is_current_stream_capturing
    initialized: Any = torch.cuda.is_initialized
    if initialized():
        value = ask()
        frame.state.require(None, Kind.MODE, Mode(ask, value), f"a capture is under way: {value}")
        return constant(value)
    text = "torch.cuda.is_initialized() is False"  # then nothing of torch's can be under way
    frame.state.require(None, Kind.MODE, Mode(initialized, False), text)
    try:
        return constant(ask())
    except RuntimeError as error:
        raise python_error(error) from None


@builtin(torch.get_default_device)
def get_default_device(frame: Frame) -> Variable:
    found = frame.state.ambient.device
    if found is None:
        if frame.state.ambient.modes_off and frame.state.ambient.modes:
            raise TraceBreakError("GB0002", "the default device where modes are switched off")
        return constant(torch.get_default_device())  # what it depends on is guarded: trace.py
    if found.type not in ("cpu", "meta") and found == torch.device(found.type):
        raise TraceBreakError("GB0002", f"the current device of {found.type}")
    return constant(found)


@builtin(torch.set_default_device)
def set_default_device(frame: Frame, device: Variable) -> Variable:
    """What is made from now on is told the device, and after the graph the process is."""
    ambient, wanted = frame.state.ambient, plain_value(device)
    if isinstance(wanted, str) and type(wanted) is str:
        wanted = _parsed(wanted)
    if wanted is not None and type(wanted) is not torch.device:
        raise TraceBreakError("GB0002", f"{wanted!r} as the default device")
    if any(isinstance(mode, DeviceMode) for mode in ambient.modes) or ambient.modes_off:
        raise TraceBreakError("GB0002", "a default device that is set inside another context")
    if wanted is not None and wanted.type not in ("cpu", "meta") and wanted.index is None:
        raise TraceBreakError("GB0002", f"the current device of {wanted.type}")
    ambient.default_device = DefaultDevice(wanted)
    return constant(None)


def _parsed(text: str) -> torch.device:
    try:
        return torch.device(text)
    except RuntimeError as error:
        raise TraceBreakError("GB0006", f"{text!r} as the default device") from error
