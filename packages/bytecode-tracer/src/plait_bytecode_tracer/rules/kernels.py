"""Launches of Triton kernels: `kernel[grid](...)` becomes a node of the graph.

Triton is not imported for this: its functions are known by their names.
"""

from __future__ import annotations

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.kernels.launches import launch
from plait_bytecode_tracer.objects.attributes import load_attribute
from plait_bytecode_tracer.objects.containers import hold
from plait_bytecode_tracer.rules.registry import builtin, named_rule
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import Known, Variable, is_none


def run(
    frame: Frame,
    kernel: Variable,
    *args: Variable,
    grid: Variable,
    warmup: Variable,
    **kwargs: Variable,
) -> Variable:
    if not isinstance(warmup, Known) or warmup.value:
        raise TraceBreakError("GB0002", "a kernel that is only compiled")
    if is_none(grid):
        raise TraceBreakError("GB0002", "a kernel that is launched without a grid")
    frame.state.is_direct = False  # a break in the function of the grid is one at the launch
    return launch(frame, hold(kernel, Known), args, grid, kwargs)


named_rule("triton.runtime.jit", "JITFunction.run")(run)
named_rule("triton.runtime.autotuner", "Autotuner.run")(run)
named_rule("triton.runtime.interpreter", "InterpretedFunction.run")(run)


@named_rule("triton.runtime.jit", "ConstexprFunction.__call__")
def call_constant_function(
    frame: Frame, function: Variable, *args: Variable, **kwargs: Variable
) -> Variable:
    """A function that kernels call too, as `triton.cdiv`: outside of them it is plain Python."""
    if any(isinstance(each, Known) and not is_constant(each.value) for each in args):
        raise TraceBreakError("GB0002", "constants of Triton's outside of a kernel")
    kwargs.pop("_semantic", None)
    return frame.call(load_attribute(frame, function, "fn"), list(args), kwargs)


@builtin(torch.library.wrap_triton)
def wrap_triton(frame: Frame, kernel: Variable, /) -> Variable:
    """A kernel for torch's own compiler, which is the kernel where that does not trace."""
    return hold(kernel, Known)
