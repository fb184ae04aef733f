"""Python's operators and builtin functions and classes, given tensors."""

from __future__ import annotations

from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.expectations import checked_truth
from plait_bytecode_tracer.objects.folding import fold, has_tensor
from plait_bytecode_tracer.objects.operations import apply
from plait_bytecode_tracer.shapes.data import number_in, open_integer
from plait_bytecode_tracer.shapes.read_ints import why_read
from plait_bytecode_tracer.tensors.patches import refuse_modes
from plait_bytecode_tracer.tensors.values import UNKNOWN, value_of
from plait_bytecode_tracer.values.texts import CONVERSIONS, text_of
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    TensorVariable,
    Variable,
)


def operator_on_tensors(
    frame: Frame, real: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """An operator or builtin of Python that is given tensors or arrays."""
    if getattr(real, "__module__", "") in ("_operator", "operator") and not kwargs:
        return apply(frame, real, args)
    if any(isinstance(arg, ArrayVariable) for arg in args):
        from plait_bytecode_tracer.arrays.calls import call_builtin

        return call_builtin(frame, real, args, kwargs)
    if real in (abs, pow, round, divmod) and not kwargs:
        node, result = frame.state.emit("call_function", real, args, {})
        return frame.state.tensor_result(node, result)
    if real in (*CONVERSIONS.values(), int, float, bool, range, bin, oct, hex, chr):
        refuse_modes(frame.state, f"{real.__name__} of a tensor")
    if real in CONVERSIONS.values() and len(args) == 1:
        return text_of(args[0], real)
    if real is bool and len(args) == 1:
        expected = checked_truth(frame, args[0], after=True)
        if expected is not None:
            return constant(expected)
    if real in (int, float, bool) and len(args) == 1:
        if real is int and isinstance(args[0], TensorVariable):
            integer = open_integer(frame.state, args[0], "int")
            if integer is not None:
                return integer
        number = _number(frame, args[0], real.__name__)
        if not has_tensor(number):
            return number
        if isinstance(number, TensorVariable):
            symbolic = number_in(frame, number, real.__name__)
            if symbolic is not None:
                return symbolic
        why = why_read(frame.state, args[0]) if isinstance(args[0], TensorVariable) else ""
        raise TraceBreakError("GB0004", f"{real.__name__}() of a tensor{why}")
    if real in (range, bin, oct, hex, chr) and not kwargs:
        numbers = [_number(frame, arg, "index") for arg in args]
        if not has_tensor(numbers):
            return fold(real, numbers, {})
    raise TraceBreakError("GB0002", f"{getattr(real, '__name__', real)} of a tensor")


def _number(frame: Frame, value: Variable, reader: str) -> Variable:
    """The number in a tensor where the trace may know it, else the tensor; others as they are."""
    if not isinstance(value, TensorVariable):
        return value
    known = value_of(frame.state, value, reader)
    return value if known is UNKNOWN else constant(known)
