"""`torch.tensor` of symbolic numbers, as an operator that is given them.

Torch's own asks for their values.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.shapes.arithmetic import assured
from plait_bytecode_tracer.values.variables import Known, SequenceVariable, SymbolVariable, Variable

_MOST = 64
"""How many numbers are put together one by one."""
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def tensor_of_numbers(
    frame: Frame, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable | None:
    """`torch.tensor(data, dtype=, device=)` of numbers, one at least symbolic; None elsewhere."""
    if len(args) != 1 or not kwargs.keys() <= {"dtype", "device"}:
        return None
    numbers: list[Variable] = []
    shape = _flatten(args[0], numbers)
    if shape is None or not any(isinstance(each, SymbolVariable) for each in numbers):
        return None
    dtype = _dtype(kwargs.get("dtype"), numbers)
    if dtype is None or not all(_is_exact(each, dtype) for each in numbers):
        return None
    options = {**kwargs, "dtype": constant(dtype)}
    size = SequenceVariable([], tuple)
    made = [frame.call(constant(torch.full), [size, each], options) for each in numbers]
    if not shape:
        return made[0]
    stacked = frame.call(constant(torch.stack), [SequenceVariable(list(made), list)], {})
    return frame.call(constant(torch.reshape), [stacked, constant(tuple(shape))], {})


def _flatten(value: Variable, numbers: list[Variable]) -> list[int] | None:
    """The shape of nested lists of numbers, which are added; None where they are something else."""
    if _kind(value) is not None:
        numbers.append(value)
        return [] if len(numbers) <= _MOST else None
    if not isinstance(value, SequenceVariable) or value.kind not in (list, tuple, torch.Size):
        return None
    shapes = [_flatten(item, numbers) for item in value.items]
    if not shapes or any(each is None or each != shapes[0] for each in shapes):
        return None
    return [len(shapes), *(shapes[0] or [])]


def _kind(value: Variable) -> type | None:
    kind = value.kind if isinstance(value, SymbolVariable) else None
    if isinstance(value, Known):
        kind = type(value.value)
    return kind if kind in (int, float) else None


def _dtype(given: Variable | None, numbers: list[Variable]) -> torch.dtype | None:
    """The element type that is asked for, or follows from the numbers; None for others."""
    is_float = any(_kind(each) is float for each in numbers)
    if given is None or (isinstance(given, Known) and given.value is None):
        return torch.get_default_dtype() if is_float else torch.int64
    wanted: Any = given.value if isinstance(given, Known) else None
    return wanted if wanted in (_FLOATS if is_float else (*_FLOATS, *_INTEGERS)) else None


def _is_exact(number: Variable, dtype: torch.dtype) -> bool:
    """Whether a number has its place in an element type, so that torch would not refuse it."""
    if dtype not in _INTEGERS:
        return True
    bounds = torch.iinfo(dtype)
    return assured(operator.ge, number, bounds.min) and assured(operator.le, number, bounds.max)
