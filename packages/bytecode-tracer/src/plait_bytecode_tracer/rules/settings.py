"""Functions that set what torch does everywhere, or exchange objects: each is one break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.rules.registry import Builtin, builtin
from plait_bytecode_tracer.values.variables import Variable


def _breaking(function: Callable[..., Any]) -> Builtin:
    def rule(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
        raise TraceBreakError("GB0002", f"torch.{function.__name__}, which sets a state of torch")

    return rule


for _function in (
    *(torch.set_printoptions, torch.set_default_tensor_type),
    *(torch.use_deterministic_algorithms, torch.set_deterministic_debug_mode),
    *(torch.set_float32_matmul_precision, torch.set_warn_always),
):
    builtin(_function)(_breaking(_function))


@builtin(torch.utils.swap_tensors)
def swap_tensors(frame: Frame, t1: Variable, t2: Variable) -> Variable:
    """It asks who else refers to the tensors, and makes each the object that the other was."""
    raise TraceBreakError("GB0002", "torch.utils.swap_tensors(), which exchanges objects")
