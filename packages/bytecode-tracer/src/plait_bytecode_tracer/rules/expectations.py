"""Functions of torch that tell whether tensors are as expected, or raise where they are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.frames.branches import expected_truth
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.graph.checks import can_check, check_truth
from plait_bytecode_tracer.objects.attributes import load_attribute
from plait_bytecode_tracer.objects.expectations import checked_truth
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.tensors.subclasses import dispatch, holds_subclass
from plait_bytecode_tracer.tensors.torch_calls import call_torch
from plait_bytecode_tracer.values.variables import TensorVariable, Variable


def _as_torch_does(
    frame: Frame, real: Callable[..., Any], args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    if holds_subclass([args, kwargs]):
        return dispatch(frame, real, args, kwargs)
    return call_torch(frame, real, args, kwargs)


def _are_plain(frame: Frame, args: tuple[Variable, ...]) -> bool:
    return all(isinstance(arg, TensorVariable) for arg in args) and can_check(frame.state)


@builtin(torch.allclose)
def allclose(frame: Frame, input: Variable, other: Variable, *args: Any, **kwargs: Any) -> Variable:
    """Whether two tensors are close; torch computes it of `isclose` too."""
    if expected_truth(frame, after=True) is not None and _are_plain(frame, (input, other)):
        close = frame.call(constant(torch.isclose), [input, other, *args], kwargs)
        found = checked_truth(frame, _all(frame, close), after=True)
        if found is not None:
            return constant(found)
    return _as_torch_does(frame, torch.allclose, [input, other, *args], kwargs)


@builtin(torch.equal)
def equal(frame: Frame, input: Variable, other: Variable) -> Variable:
    """Whether two tensors are equal. Tensors of one memory may be so with NaN: only that they
    are equal is told by their elements."""
    if (
        expected_truth(frame, after=True) is True
        and _are_plain(frame, (input, other))
        and _are_alike(input, other)
    ):
        same = frame.call(constant(torch.eq), [input, other], {})
        if checked_truth(frame, _all(frame, same), after=True):
            return constant(True)
    return _as_torch_does(frame, torch.equal, [input, other], {})


def _are_alike(input: Variable, other: Variable) -> bool:
    assert isinstance(input, TensorVariable)
    assert isinstance(other, TensorVariable)
    one, two = input.fake, other.fake
    return (one.dtype, one.device, one.layout) == (two.dtype, two.device, two.layout) and (
        tuple(one.shape) == tuple(two.shape)
    )


def _all(frame: Frame, value: Variable) -> Variable:
    return frame.call(load_attribute(frame, value, "all"), [], {})


@builtin(torch.is_nonzero)
def is_nonzero(frame: Frame, input: Variable) -> Variable:
    found = checked_truth(frame, input, after=True) if _are_plain(frame, (input,)) else None
    if found is not None:
        return constant(found)
    return _as_torch_does(frame, torch.is_nonzero, [input], {})


@builtin(torch._assert_async)
def assert_async(frame: Frame, input: Variable, *args: Variable) -> Variable:
    """On the CPU this raises at once, as a check does."""
    if (
        isinstance(input, TensorVariable)
        and input.fake.device.type == "cpu"
        and check_truth(frame.state, input, True)
    ):
        return constant(None)
    return _as_torch_does(frame, torch._assert_async, [input, *args], {})
