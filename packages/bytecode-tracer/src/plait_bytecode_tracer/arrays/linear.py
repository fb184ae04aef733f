"""Products, linear algebra, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from plait_bytecode_tracer.arrays.context import Context
from plait_bytecode_tracer.arrays.table import captured
from plait_bytecode_tracer.arrays.ufuncs import operands_of
from plait_bytecode_tracer.arrays.values import dtype_of
from plait_bytecode_tracer.values.variables import Variable


def _operands(context: Context, values: Sequence[Variable]) -> list[Any]:
    found, dtype = operands_of(context, [context.array(value) for value in values])
    if dtype.kind == "b" or dtype == np.float16:
        context.refuse(f"elements of {dtype}")
    return found


def matmul(context: Context, x1: Variable, x2: Variable) -> Variable:
    """`numpy.matmul`."""
    left, right = _operands(context, [x1, x2])
    if not left.dim() or not right.dim():
        context.refuse("a scalar")
    return context.result(context.t.matmul(left, right))


@captured(np.dot)
def dot(context: Context, a: Variable, b: Variable) -> Variable:
    left, right = _operands(context, [a, b])
    if not left.dim() or not right.dim():
        return context.result(left * right)
    if right.dim() <= 2:
        return context.result(context.t.matmul(left, right))
    return context.result(context.t.tensordot(left, right, ([left.dim() - 1], [right.dim() - 2])))


@captured(np.inner)
def _inner(context: Context, a: Variable, b: Variable) -> Variable:
    left, right = _operands(context, [a, b])
    if not left.dim() or not right.dim():
        return context.result(left * right)
    return context.result(context.t.inner(left, right))


@captured(np.outer)
def _outer(context: Context, a: Variable, b: Variable) -> Variable:
    left, right = _operands(context, [a, b])
    return context.result(context.t.outer(left.reshape(-1), right.reshape(-1)), scalar=False)


@captured(np.vdot)
def _vdot(context: Context, a: Variable, b: Variable) -> Variable:
    left, right = (each.reshape(-1) for each in _operands(context, [a, b]))
    return context.result(context.t.vdot(left, right))


@captured(np.tensordot)
def _tensordot(
    context: Context, a: Variable, b: Variable, axes: Variable | None = None
) -> Variable:
    left, right = _operands(context, [a, b])
    found = context.t.tensordot(left, right, context.constant(axes, 2))
    return context.result(found, scalar=False, inner=True)


@captured(np.einsum)
def _einsum(context: Context, *operands: Variable) -> Variable:
    form = context.constant(operands[0])
    if type(form) is not str or len(operands) < 3:
        context.refuse("fewer than two arrays")
    return context.result(context.t.einsum(form, *_operands(context, operands[1:])))


# Linear algebra.


def _matrices(context: Context, *values: Variable) -> list[Any]:
    """Floats, as `numpy.linalg` computes with them."""
    arrays = [context.array(value) for value in values]
    dtypes = [dtype_of(array) for array in arrays]
    dtype = np.result_type(*[d if d.kind in "fc" else np.dtype("f8") for d in dtypes])
    if dtype.kind == "c" or np.dtype("f2") in dtypes:
        context.refuse(f"elements of {dtype}")
    return [context.traced(array, dtype) for array in arrays]


@captured(np.linalg.norm)
def _norm(
    context: Context,
    x: Variable,
    ord: Variable | None = None,  # its name
    axis: Variable | None = None,
    keepdims: Variable | None = None,
) -> Variable:
    (tensor,) = _matrices(context, x)
    order, place = context.constant(ord), context.constant(axis)
    keep = bool(context.constant(keepdims, False))
    if order is not None and (order not in (1, 2, np.inf) or type(place) is not int):
        context.refuse("such an order")
    if place is None:
        if keep:
            context.refuse("keepdims of all axes")
        return context.result(context.t.linalg.vector_norm(tensor.reshape(-1), 2))
    if type(place) is not int:
        context.refuse("several axes")
    found = context.t.linalg.vector_norm(tensor, 2 if order is None else order, place, keep)
    return context.result(found)


@captured(np.linalg.det)
def _det(context: Context, a: Variable) -> Variable:
    return context.result(context.t.linalg.det(*_matrices(context, a)))


@captured(np.linalg.inv)
def _inv(context: Context, a: Variable) -> Variable:
    return context.result(context.t.linalg.inv(*_matrices(context, a)).contiguous())


@captured(np.linalg.solve)
def _solve(context: Context, a: Variable, b: Variable) -> Variable:
    matrix, right = _matrices(context, a, b)
    if right.dim() not in (1, 2) or matrix.dim() != 2:
        context.refuse("stacks of matrices")
    return context.result(context.t.linalg.solve(matrix, right).contiguous())


# Fourier transforms.


def _transformed(name: str) -> None:
    def rule(
        context: Context,
        a: Variable,
        n: Variable | None = None,
        axis: Variable | None = None,
        norm: Variable | None = None,
    ) -> Variable:
        return _transform(context, name, a, n, context.constant(axis, -1), norm)

    captured(getattr(np.fft, name))(rule)


def _transformed_in_two(name: str) -> None:
    def rule(
        context: Context,
        a: Variable,
        s: Variable | None = None,
        axes: Variable | None = None,
        norm: Variable | None = None,
    ) -> Variable:
        return _transform(context, name, a, s, context.constant(axes, (-2, -1)), norm)

    captured(getattr(np.fft, name))(rule)


def _transform(
    context: Context,
    name: str,
    a: Variable,
    size: Variable | None,
    axes: Any,
    norm: Variable | None,
) -> Variable:
    array = context.array(a)
    own = dtype_of(array)
    if own == np.float16:
        context.refuse("elements of float16")
    tensor = context.traced(array, own if own.kind in "fc" else np.dtype("f8"))
    sizes = context.constant(size)
    if isinstance(sizes, tuple | list) and any(each is None or each < 1 for each in sizes):
        context.refuse("such sizes")
    found = getattr(context.t.fft, name)(tensor, sizes, axes, context.constant(norm))
    return context.result(found.resolve_conj().contiguous())


for _name in ("fft", "ifft", "rfft", "irfft"):
    _transformed(_name)
for _name in ("fft2", "ifft2", "rfft2", "irfft2"):
    _transformed_in_two(_name)
