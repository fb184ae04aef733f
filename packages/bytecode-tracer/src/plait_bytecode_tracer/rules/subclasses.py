"""`torch.Tensor.__torch_function__`, which subclasses call for what they do not change."""

from __future__ import annotations

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.objects.containers import hold
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.tensors.subclasses import default
from plait_bytecode_tracer.values.variables import DictVariable, Known, SequenceVariable, Variable


@builtin(torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]  # a classmethod
def torch_function(
    frame: Frame,
    owner: Variable,
    function: Variable,
    types: Variable,
    args: Variable | None = None,
    kwargs: Variable | None = None,
) -> Variable:
    cls = hold(owner, Known).value
    if not isinstance(cls, type):
        raise TraceBreakError("GB0009", "__torch_function__ of something that is no class")
    given = [] if args is None else list(hold(args, SequenceVariable).items)
    named = dict(kwargs.items.items()) if isinstance(kwargs, DictVariable) else {}
    return default(frame, cls, hold(function, Known).value, given, named)
