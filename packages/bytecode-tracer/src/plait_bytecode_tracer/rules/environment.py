"""Functions that talk to the world or look at the interpreter."""

from __future__ import annotations

import builtins
import inspect
import sys
import weakref

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import Frame, constant
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.variables import Known, TensorVariable, Variable, is_constant


@builtin(print)
def print_(frame: Frame, *values: Variable, **options: Variable) -> Variable:
    """Printed after the graph has run, in the order of the program."""
    simple = all(isinstance(value, Known) and is_constant(value.value) for value in values)
    if frame.state.written_globals(vars(sys)) is not None:
        raise TraceBreakError("GB0005", "the code prints after it has replaced sys.stdout")
    if not simple or any(name not in ("sep", "end", "flush") for name in options):
        raise TraceBreakError("GB0005", "the code prints a value that only the graph's run gives")
    frame.state.deferred.append((constant(print), list(values), dict(options)))
    return constant(None)


@builtin(builtins.input, builtins.open)
def open_(frame: Frame, *values: Variable, **options: Variable) -> Variable:
    raise TraceBreakError("GB0005", "the code reads or writes a file")


@builtin(weakref.ref, weakref.proxy, weakref.finalize)
def weak_reference(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
    """A break resumes with the object held by the frames around it, which would keep it alive."""
    raise TraceBreakError("GB0013", "a weak reference is made")


@builtin(sys._getframe, inspect.currentframe, inspect.stack)
def frame_dependent(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
    """What looks at the frames that call it, which only Python itself has."""
    raise TraceBreakError("GB0013", "sys._getframe(), or a function like it, looks into the frame")


@builtin(globals)
def globals_(frame: Frame) -> Variable:
    return frame.state.global_table(frame.function.globals)


@builtin(torch.is_tensor)
def is_tensor(frame: Frame, value: Variable) -> Variable:
    return constant(isinstance(value, TensorVariable))


@builtin(torch._jit_internal.is_scripting)
def is_scripting(frame: Frame) -> Variable:
    return constant(False)
