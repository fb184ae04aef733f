"""The axes that arguments name."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from plait_bytecode_tracer.arrays.context import Context
from plait_bytecode_tracer.arrays.traced import Traced
from plait_bytecode_tracer.frames.frame import constant
from plait_bytecode_tracer.values.variables import ArrayVariable, Variable


def axes_of(context: Context, array: ArrayVariable, axis: Variable | None) -> tuple[int, ...]:
    """The axes that are reduced, none of them negative."""
    count = context.traced(array).dim()
    wanted = context.constant(axis)
    if wanted is None:
        return tuple(range(count))
    given = wanted if isinstance(wanted, tuple) else (wanted,)
    if not all(type(each) is int or isinstance(each, np.integer) for each in given):
        context.refuse("such an axis")
    found = tuple(operator.index(each) for each in given)
    if any(not -count <= each < count for each in found):
        context.refuse("an axis that is not there")
    placed = tuple(each % count for each in found)
    if len(set(placed)) < len(placed):
        context.refuse("an axis twice")
    return placed


def along(
    context: Context, array: ArrayVariable, axis: Variable | None, dtype: np.dtype[Any] | None
) -> tuple[Traced, int]:
    """A tensor and its axis; all elements in a row without one."""
    tensor = context.traced(array, dtype)
    wanted = context.constant(axis)
    if wanted is None:
        return tensor.reshape(-1), 0
    (place,) = axes_of(context, array, constant(operator.index(wanted)))
    return tensor, place
