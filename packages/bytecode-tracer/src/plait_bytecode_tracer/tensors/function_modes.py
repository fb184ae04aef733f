"""`TorchFunctionMode`s that the traced code enters: their Python is traced where torch calls it.

What torch would hand to a mode, and in which form, is asked of torch itself, as for
subclasses of tensors: the operation runs on empty tensors under a mode that only notes how
it is called. The program's mode is then called so, with itself put aside, as torch does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.tensors.ambient import DeviceMode, makes_on_device
from plait_bytecode_tracer.tensors.leaves import is_of_torch, leaves_state
from plait_bytecode_tracer.tensors.subclasses import CalledError, Recording, recorded
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    SequenceVariable,
    Variable,
    is_none,
)

_ASKING = frozenset({torch._C._set_grad_enabled})
"""Functions with effects of which it is known that they ask modes."""


class _Probe(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise CalledError(func, types, args, kwargs)


def is_active(frame: Frame) -> bool:
    """Whether a mode that the trace has entered sees what torch is called for."""
    return frame.state.ambient.intercepts


def through_mode(
    frame: Frame,
    target: Callable[..., Any],
    args: Sequence[Variable],
    kwargs: dict[str, Variable],
) -> Variable | None:
    """What the innermost mode makes of a call of torch; None if it is not asked."""
    if not is_active(frame):
        return None
    modes = frame.state.ambient.modes
    if isinstance(modes[-1], DeviceMode):
        return _through_device(frame, modes, target, args, kwargs)
    with _Probe():
        asked = recorded(target, args, kwargs)
    return None if asked is None else call_mode(frame, asked)


def _through_device(
    frame: Frame,
    modes: list[Variable | DeviceMode],
    target: Callable[..., Any],
    args: Sequence[Variable],
    kwargs: dict[str, Variable],
) -> Variable | None:
    """The same where a context of a device comes first: modes around it see the device."""
    top = modes.pop()
    assert isinstance(top, DeviceMode)
    try:
        given = kwargs.get("device")
        if makes_on_device(target) and (given is None or is_none(given)):
            kwargs = {**kwargs, "device": constant(top.device)}
        return through_mode(frame, target, args, kwargs)
    finally:
        modes.append(top)


def through_mode_of(
    frame: Frame, real: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable | None:
    """The same for a function that the program calls; None for one that asks no mode."""
    if not is_active(frame):
        return None
    if real in _ASKING:
        return call_mode(frame, Recording(real, (), args, kwargs or None))
    if real is not torch.device and not (is_of_torch(real) and leaves_state(real)):
        return None
    return through_mode(frame, real, args, kwargs)


def call_mode(frame: Frame, asked: Recording) -> Variable:
    """Call the innermost mode, which does not see what is called meanwhile."""
    from plait_bytecode_tracer.objects.attributes import load_attribute

    modes = frame.state.ambient.modes
    values: list[Variable] = [
        constant(asked.function),
        SequenceVariable([constant(cls) for cls in asked.types], tuple),
        SequenceVariable(list(asked.args), tuple),
    ]
    if asked.kwargs is not None:
        values.append(DictVariable(dict(asked.kwargs)))
    mode = modes.pop()
    if isinstance(mode, DeviceMode):  # of a function that makes nothing
        try:
            return call_mode(frame, asked)
        finally:
            modes.append(mode)
    frame.state.is_direct = False  # a break in the mode is one at the call that it intercepts
    try:
        result = frame.call(load_attribute(frame, mode, "__torch_function__"), values, {})
    finally:
        modes.append(mode)
    if isinstance(result, Known) and result.value is NotImplemented:
        raise TraceBreakError("GB0006", "a torch function mode refuses")
    return result
