"""Tensors of Python's numbers and NumPy's scalars, whose element types torch takes."""

from __future__ import annotations

from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import python_error
from plait_bytecode_tracer.frames.frame import constant
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.folding import tracked
from plait_bytecode_tracer.values.numpy_objects import is_numpy_scalar
from plait_bytecode_tracer.values.variables import Known, SequenceVariable, Variable

OF_DATA: frozenset[Any] = frozenset({torch.tensor, torch.as_tensor, torch.asarray})
"""Functions whose result has the element type of the data."""


def with_element_type(
    args: list[Variable], kwargs: dict[str, Variable]
) -> tuple[list[Variable], dict[str, Variable]]:
    """The arguments of one of these with plain numbers for scalars of NumPy, and their type.

    Raises TraceBreakError where numbers that are not known, or tensors, are among them.
    """
    if not _holds_scalar([*args[:1], *kwargs.values()]):
        return args, kwargs
    if not args:
        raise TraceBreakError("GB0009", "a tensor of scalars of NumPy that are given by name")
    data = _known(args[0])
    kwargs = dict(kwargs)
    given = kwargs.get("dtype")
    if given is None or (isinstance(given, Known) and given.value is None):
        try:
            with torch._C.DisableTorchFunction():
                kwargs["dtype"] = constant(torch.tensor(data).dtype)
        except (TypeError, ValueError, RuntimeError) as error:
            raise python_error(error) from error
    return [tracked(_plain(data)), *args[1:]], kwargs


def _holds_scalar(values: list[Variable], depth: int = 64) -> bool:
    """Whether a scalar of NumPy is among values, or in nested lists of them.

    Lists deeper than tensors can be, such as one that holds itself, are for torch to refuse.
    """
    for value in values:
        if isinstance(value, Known) and is_numpy_scalar(value.value):
            return True
        if isinstance(value, SequenceVariable) and depth and _holds_scalar(value.items, depth - 1):
            return True
    return False


def _known(value: Variable) -> Any:
    """Nested lists of numbers that the trace knows."""
    if isinstance(value, SequenceVariable) and value.kind in (list, tuple):
        return [_known(item) for item in value.items]
    if not isinstance(value, Known):
        raise TraceBreakError("GB0009", "a tensor of scalars of NumPy and of what changes")
    return plain_value(value)


def _plain(data: Any) -> Any:
    if isinstance(data, list):
        return [_plain(item) for item in data]
    return data.item() if is_numpy_scalar(data) else data
