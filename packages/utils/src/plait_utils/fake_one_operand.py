"""Strides of what operators give of one tensor, as real kernels give them.

Torch's kernels for tensors without data keep the order of dimensions, and lose strides of
dimensions of one element. These mean nothing by themselves, but decide with others how the result
of a later operator lies, and which memory format is told of an image with one channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format

from plait_utils.fake_iterators import (
    Geometry,
    elementwise_strides,
    is_dense,
    iterated_strides,
    row_major,
)

Rule = Callable[[Tensor, Tensor], tuple[int, ...]]
"""The strides of a result, the second argument, of an operand of the same sizes."""

_LIKE = (
    *(f"{name}_like" for name in ("zeros", "ones", "full", "rand", "randn", "randint")),
    *("flip", "sort", "argsort", "nan_to_num", "deg2rad", "rad2deg", "hardtanh", "relu6"),
    *("index_put", "frexp", "_prelu_kernel"),
)
"""Made by `empty_like` or `clone` of the operand."""
_IN_ROWS = (
    *("tril", "triu", "index_copy", "index_add", "masked_fill", "renorm", "_log_softmax"),
    *("native_layer_norm", "rrelu_with_noise", "im2col", "norm", "linalg_vector_norm"),
    *("one_hot", "diag_embed"),
)
"""Row after row, however the operand lies."""
_SCATTERED = ("slice_scatter", "select_scatter", "diagonal_scatter")
"""Written to a copy with the same strides, gaps included, but of what is expanded."""
_UNTAGGED = ("hardswish",)
_UNKNOWN = ("clone", "conj_physical", "mvlgamma", "positive", "isfinite", "to")
"""Tagged as elementwise, but composed of others or known to torch."""
_OF_NUMBERS = frozenset(("x_scalar", "n_scalar", "self_scalar", "other_scalar"))
_DIVISIONS = ("div", "floor_divide")
_UNCAST = ("isnan", "isneginf", "isposinf", "logical_not", "signbit")
"""The result has another type, but the operand is read as it is."""


def strides_of_one(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Rule | None:
    """How results lie that follow from the first tensor alone; None where torch's kernels know."""
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return None
    if func is torch.ops.aten.roll.default:
        return _rolled(*args[1:], **kwargs)
    tensors = sum(isinstance(each, Tensor) for each in args)
    has_number = any(isinstance(each, int | float | complex) for each in args[:2])
    return _rule(func, tensors, has_number)


@cache
def _rule(func: OpOverload, tensors: int, has_number: bool) -> Rule | None:
    overload = func._overloadname
    if func.namespace != "aten" or overload == "out":
        return None
    name = func._schema.name.removeprefix("aten::")
    if name in _LIKE:
        return _like
    if name in _SCATTERED:
        return _kept
    if name in _IN_ROWS:
        return in_rows
    if tensors > 1 or func._schema.is_mutable:
        return None
    if name in _DIVISIONS:
        return _with_number if has_number else None
    if name in _UNKNOWN or not (torch.Tag.pointwise in func.tags or name in _UNTAGGED):
        return None
    if name == "isinf":
        return _infinite
    if name == "pow":
        return _alone if overload == "Tensor_Scalar" else None
    if overload in _OF_NUMBERS or "Scalar" in overload or (overload == "Tensor" and has_number):
        return _with_number
    return _uncast if name in _UNCAST else _alone


def _like(operand: Tensor, made: Tensor) -> tuple[int, ...]:
    given = _geometry(operand)
    return given[1] if is_dense(given) else iterated_strides(given[0], [given[1]])


def _kept(operand: Tensor, made: Tensor) -> tuple[int, ...]:
    pairs = zip(operand.shape, operand.stride(), strict=True)
    if any(size > 1 and not step for size, step in pairs):
        return _like(operand, made)
    return operand.stride()


def _rolled(shifts: Sequence[int], dims: Sequence[int] = ()) -> Rule:
    """Joined of two parts, dimension by dimension, which keeps channels last if both lie so."""

    def rule(operand: Tensor, made: Tensor) -> tuple[int, ...]:
        if not dims or operand.ndim not in (4, 5) or operand.stride() == row_major(operand.shape):
            return row_major(made.shape)
        joined = torch.empty_strided(operand.shape, operand.stride(), device="meta")
        for shift, dim in zip(shifts, dims, strict=True):
            at = -shift % joined.shape[dim]
            parts = joined.narrow(dim, 0, at), joined.narrow(dim, at, joined.shape[dim] - at)
            one, other = map(suggest_memory_format, parts)
            told = one if one is other else torch.contiguous_format
            joined = torch.empty(made.shape, device="meta", memory_format=told)
        return joined.stride()

    return rule


def in_rows(operand: Tensor, made: Tensor) -> tuple[int, ...]:
    """Row after row."""
    return row_major(made.shape)


def _alone(operand: Tensor, made: Tensor) -> tuple[int, ...]:
    given = _geometry(operand)
    if operand.dtype is not made.dtype and made.device.type == "cpu":
        given = given[0], _like(operand, made)  # a copy of another type
    return elementwise_strides(given[0], [given])


def _uncast(operand: Tensor, made: Tensor) -> tuple[int, ...]:
    given = _geometry(operand)
    return elementwise_strides(given[0], [given])


def _with_number(operand: Tensor, made: Tensor) -> tuple[int, ...]:
    given = _geometry(operand)
    return elementwise_strides(given[0], [given, ((), ())])


def _infinite(operand: Tensor, made: Tensor) -> tuple[int, ...]:
    """`operand.abs() == inf`; no integers are."""
    if not operand.dtype.is_floating_point:
        return _like(operand, made)
    given = _geometry(operand)
    return elementwise_strides(given[0], [(given[0], _uncast(operand, made)), ((), ())])


def _geometry(tensor: Tensor) -> Geometry:
    return tuple(tensor.shape), tensor.stride()
