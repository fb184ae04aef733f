"""What `torch.distributed` tells of the process group; what it sends stays a call of Python's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.rules.registry import Builtin, builtin
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import Variable


def _question(function: Callable[[], Any]) -> Builtin:
    """The rule of a function that tells something of the default group, guarded."""

    def ask(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
        name = function.__name__
        if args or kwargs:
            raise TraceBreakError("GB0002", f"a call of {name} for a group")
        try:
            value = function()
        except Exception as error:
            raise TraceBreakError("GB0006", f"{name} raises {type(error).__name__}") from error
        if not is_constant(value):
            raise TraceBreakError("GB0002", f"a call of {name}")
        frame.state.require(None, Kind.MODE, Mode(function, value), f"{name}() is {value!r}")
        return constant(value)

    return ask


_NAMES = ("is_available", "is_initialized", "is_torchelastic_launched", "is_nccl_available")
_OF_GROUP = ("get_rank", "get_world_size", "get_backend")
for _name in (*_NAMES, *_OF_GROUP):
    _function = getattr(dist, _name, None)  # a torch without distributed has few of them
    if _function is not None:
        builtin(_function)(_question(_function))
