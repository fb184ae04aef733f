"""Truths that the program expects of data: a check in the graph takes the place of the branch."""

from __future__ import annotations

import torch

from plait_bytecode_tracer.frames.branches import expected_truth
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.graph.checks import check_number_truth, check_truth
from plait_bytecode_tracer.tensors.values import is_made_of_constants
from plait_bytecode_tracer.values.variables import (
    Known,
    SymbolVariable,
    TensorVariable,
    Variable,
)

_READS = frozenset({"item", "__bool__", "__int__"})


def checked_truth(frame: Frame, value: Variable, *, after: bool = False) -> bool | None:
    """What is expected of the truth of a value that depends on data, checked from now on.

    The running instruction tests the value, or with `after` gives its truth, which the program
    tests later. None where nothing is expected, or cannot be checked.
    """
    if isinstance(value, TensorVariable):
        if is_made_of_constants(value.node):
            return None
    elif not isinstance(value, SymbolVariable) or value.hint is not None:
        return None
    expected = expected_truth(frame, after=after)
    if expected is None:
        return None
    if isinstance(value, TensorVariable):
        return expected if check_truth(frame.state, value, expected) else None
    return expected if check_number_truth(frame.state, value, expected) else None


def expected_number(frame: Frame, tensor: TensorVariable, method: str) -> Known | None:
    """What a method that reads a tensor is expected to give: a bool, or a zero; None elsewhere."""
    if method not in _READS:
        return None
    expected = checked_truth_of_kind(frame, tensor, method)
    if expected is None:
        return None
    is_bool = method == "__bool__" or (method == "item" and tensor.fake.dtype is torch.bool)
    return constant(expected if is_bool else int(expected))


def checked_truth_of_kind(frame: Frame, tensor: TensorVariable, method: str) -> bool | None:
    """`checked_truth` of what a method gives, where that says which number it gives."""
    dtype = tensor.fake.dtype
    if dtype is not torch.bool and method != "__bool__":
        is_integral = not (dtype.is_floating_point or dtype.is_complex)
        if not is_integral or expected_truth(frame, after=True) is not False:
            return None
    return checked_truth(frame, tensor, after=True)
