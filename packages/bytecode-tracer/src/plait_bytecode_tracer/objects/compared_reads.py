"""Numbers that the program reads from tensors to compare them, and raises where they are bad.

`if ids.max().item() >= size: raise IndexError` needs no number while the graph runs: the graph
compares, and checks the answer. The comparison is that of Python, which is exact: integers are
compared as 64-bit integers and floats as 64-bit floats.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.branches import expected_of_comparison, expected_truth
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.graph.checks import can_check, check_truth
from plait_bytecode_tracer.tensors.function_modes import is_active
from plait_bytecode_tracer.tensors.patches import require_own
from plait_bytecode_tracer.tensors.values import is_made_of_constants
from plait_bytecode_tracer.values.variables import (
    Known,
    MethodVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
)
from plait_utils import dataclass

_QUESTIONS: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
    math.isnan: torch.isnan,
    math.isinf: torch.isinf,
    math.isfinite: torch.isfinite,
}
"""What Python is asked of a number, and of a tensor with the same answer."""
_INT64 = 1 << 63
_EXACT = 1 << 53
"""Integers up to this are floats, too."""
_OPPOSITE: dict[Any, Any] = {
    operator.lt: operator.gt,
    operator.gt: operator.lt,
    operator.le: operator.ge,
    operator.ge: operator.le,
    operator.eq: operator.eq,
    operator.ne: operator.ne,
}


@dataclass(eq=False, slots=True)
class ReadVariable(Variable):
    """The number in a tensor of one element, as Python reads it."""

    tensor: TensorVariable
    """A copy, which nothing changes, of 64 bits: an integer or a float."""
    kind: type
    """What Python reads: bool, int or float."""
    is_short: bool
    """Whether an integer is so short that it is a float, too."""

    @property
    def is_float(self) -> bool:
        return self.kind is float


def read_to_compare(frame: Frame, function: Variable, args: list[Variable]) -> Variable | None:
    """What a call gives that reads a number which is only compared, or asks of one; else None."""
    match function:
        case MethodVariable(TensorVariable() as tensor, "item") if not args:
            return _read(frame, tensor, "item")
        case Known(real) if len(args) == 1:
            if isinstance(args[0], ReadVariable):
                return _asked(frame, real, args[0])
            if isinstance(args[0], TensorVariable) and (real is int or real is float):
                is_float = args[0].fake.dtype.is_floating_point
                is_same = is_float is (real is float) and args[0].fake.dtype is not torch.bool
                return _read(frame, args[0], f"__{real.__name__}__") if is_same else None
    return None


def _read(frame: Frame, tensor: TensorVariable, method: str) -> ReadVariable | None:
    fake = tensor.fake
    is_one = all(type(size) is int and size == 1 for size in fake.shape)
    if not is_one or fake.is_complex() or fake.dtype is torch.uint64 or is_active(frame):
        return None
    if tensor.cls is not torch.Tensor or is_made_of_constants(tensor.node):
        return None
    if expected_of_comparison(frame, _asks(frame)) is None or not can_check(frame.state):
        return None
    require_own(frame.state, method)
    kind = float if fake.is_floating_point() else int
    wide = constant(torch.float64 if kind is float else torch.int64)
    args, options = [tensor, wide], {"copy": constant(True)}
    node, copied = frame.state.emit("call_method", "to", args, options)
    kind = bool if fake.dtype is torch.bool else kind
    return ReadVariable(TensorVariable(node, copied), kind, fake.dtype.itemsize <= 4)


def _asks(frame: Frame) -> bool:
    """Whether what is called next with the number is a question that tensors answer too."""
    return any(
        isinstance(each, Known) and any(each.value is asked for asked in _QUESTIONS)
        for each in frame.stack[-2:]
    )


def _asked(frame: Frame, function: Any, read: ReadVariable) -> Known:
    asked = next((found for each, found in _QUESTIONS.items() if each is function), None)
    if asked is None:
        raise TraceBreakError("GB0004", "a number that depends on data is needed")
    node, answer = frame.state.emit("call_function", asked, [read.tensor], {})
    return _expected(frame, TensorVariable(node, answer))


def compare_reads(
    frame: Frame, function: Callable[..., Any], left: Variable, right: Variable
) -> Known:
    """A comparison of a number that is read, of which the program expects the answer.

    Raises TraceBreakError where it cannot be made in the graph.
    """
    if not isinstance(left, ReadVariable):
        function, left, right = _OPPOSITE[function], right, left
    assert isinstance(left, ReadVariable)
    one, other = left.tensor, _comparable(left, right)
    if isinstance(right, Known) and type(right.value) is float and not left.is_float:
        node, as_float = frame.state.emit("call_method", "double", [one], {})
        one = TensorVariable(node, as_float)
    node, answer = frame.state.emit("call_function", function, [one, other], {})
    return _expected(frame, TensorVariable(node, answer))


def _comparable(read: ReadVariable, other: Variable) -> Variable:
    """What a graph compares a number with. Raises TraceBreakError where that would not be exact."""
    match other:
        case ReadVariable() if other.is_float is read.is_float:
            return other.tensor
        case SymbolVariable() if other.kind is int and not read.is_float:
            return other
        case Known(number) if type(number) is float and (read.is_float or read.is_short):
            return other
        case Known(number) if type(number) in (bool, int):
            low, high = (-_EXACT, _EXACT) if read.is_float else (-_INT64, _INT64 - 1)
            if low <= number <= high:
                return other
    raise TraceBreakError("GB0004", "a number that depends on data is needed")


def _expected(frame: Frame, answer: TensorVariable) -> Known:
    expected = expected_truth(frame, after=True)
    if expected is None or not check_truth(frame.state, answer, expected):
        raise TraceBreakError("GB0004", "a number that depends on data is needed")
    return constant(expected)
