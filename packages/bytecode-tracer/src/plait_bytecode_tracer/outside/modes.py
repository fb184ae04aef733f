"""The modes of torch around a call: guarded as they are, refused where nothing can be traced."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.outside.mode_reads import (
    NO_FORWARD_LEVEL,
    default_devices,
    forward_level,
    has_saved_tensor_hooks,
    is_transforming,
)
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.ambient import AUTOCAST_DEVICES, bound
from plait_utils.precision import is_tf32_allowed


def guard_modes(state: TraceState) -> None:
    """The modes under which every operation of the trace runs."""
    modes: tuple[tuple[str, Callable[[], object]], ...] = (
        ("gradients", torch.is_grad_enabled),
        ("inference mode", torch.is_inference_mode_enabled),
        ("autocast", torch._C._is_any_autocast_enabled),
        ("default dtype", torch.get_default_dtype),
        ("active dispatch modes", torch._C._len_torch_dispatch_stack),
        ("default devices", default_devices),
        ("function transforms", is_transforming),
        ("hooks of saved tensors", has_saved_tensor_hooks),
        ("forward-mode differentiation", forward_level),
    )
    # What combines in any order on a GPU is compiled so, and what multiplies by first bits.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no types for it
        modes = (
            *modes,
            ("deterministic algorithms", torch._C._get_deterministic_algorithms),
            ("products in tf32", is_tf32_allowed),
        )
    for text, function in modes:
        value = function()
        quick = _QUICK.get(function)
        found = Mode(function, value) if value or quick is None else Mode(*quick)
        state.require(None, Kind.MODE, found, f"{text}: {value}")
    if torch._C._is_any_autocast_enabled():
        _guard_autocast(state)
    if torch._C._len_torch_dispatch_stack():
        raise TraceBreakError("GB0002", "a dispatch mode is active")
    if None in default_devices():
        raise TraceBreakError("GB0002", "a torch function mode is active")
    if has_saved_tensor_hooks():
        raise TraceBreakError("GB0002", "hooks of saved tensors are active")
    if forward_level() != NO_FORWARD_LEVEL:
        raise TraceBreakError("GB0002", "derivatives in forward mode are being computed")
    if is_transforming():
        raise TraceBreakError("GB0002", "a function transform of torch.func is active")


def _guard_autocast(state: TraceState) -> None:
    """What autocast does, where it is on at the call."""
    for device in AUTOCAST_DEVICES:
        for getter in (torch.is_autocast_enabled, torch.get_autocast_dtype):
            read = bound(getter, (device,))
            text = f"{getter.__name__}({device!r}) is {read()!r}"
            state.require(None, Kind.MODE, Mode(read, read()), text)


_top_hooks = functools.partial(torch._C._autograd._top_saved_tensors_default_hooks, True)
_QUICK: dict[Callable[[], object], tuple[Callable[[], object], object]] = {
    default_devices: (torch._C._len_torch_function_stack, 0),
    is_transforming: (torch._C._functorch.peek_interpreter_stack, None),
    has_saved_tensor_hooks: (_top_hooks, None),
}
"""Functions of torch that tell at once that a mode is not there, and what they return then."""
