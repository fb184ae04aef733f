"""NumPy's functions, methods and operators on arrays: values, types, layouts, errors."""

from __future__ import annotations

import numpy as np

from conformance.arrays import a, floats, pairs, singles
from conformance.declare import case

REQUIRES = ("numpy",)


@case(pairs)
def arithmetic(x, y):
    return x + y, x - y, x * y, x / 2, x * 2.5, 1 - y, -x, x @ y.T


@case(pairs)
def division_and_remainder(x, y):
    return x // (y * y + 1), x % (y * y + 1), divmod(x, 3), x**2


@case(pairs)
def comparisons(x, y):
    return x < y, x >= 0, x == y, x != 1, (x > 0) & (y > 0), ~(x > 0), np.logical_or(x, y)


@case(floats)
def universal_functions(x):
    y = np.abs(x) + 1
    return np.sin(x), np.exp(x), np.log(y), np.sqrt(y), np.tanh(x), np.sign(x), np.floor(x)


@case(floats)
def more_universal_functions(x):
    return np.rint(x), np.hypot(x, 2), np.arctan2(x, 3), np.maximum(x, 0), np.isnan(x), np.square(x)


@case(pairs)
def type_promotion(x, y):
    return (x + np.int8(1)).dtype, (x * 1.5).dtype, (x + y).dtype, (x > y).dtype, (x / 2).dtype


@case(lambda: [(a(3, dtype=np.int8),), (a(3, dtype=np.uint8, start=1),), (a(3, dtype=np.int32),)])
def integer_overflow(x):
    return x * 100, x + x, x.sum(), x * x.dtype.type(100), x.astype(np.int64) * 2**40


@case(singles)
def reductions(x):
    return x.sum(), x.max(), x.min(), x.any(), x.all(), np.prod(x), x.argmax(), x.mean()


@case(lambda: [(a(2, 3), 0), (a(2, 3), 1), (a(2, 3), -1), (a(2, 3), None), (a(2, 3), (0, 1))])
def reductions_along_axes(x, axis):
    return x.sum(axis=axis), x.mean(axis, keepdims=True), np.max(x, axis=axis), x.std(axis=axis)


@case(floats)
def spread(x):
    return np.var(x), np.std(x, axis=0), x.var(ddof=1), np.median(x), np.median(x, axis=1)


@case(floats)
def running(x):
    return np.cumsum(x), np.cumsum(x, axis=1), x.cumprod(0), np.diff(x), np.diff(x, axis=0)


@case(singles)
def types_of_sums(x):
    return (
        x.sum().dtype,
        type(x.max()),
        type(x.mean()),
        np.sum(x, dtype=np.float64),
        x.cumsum().dtype,
    )


@case(pairs)
def joining(x, y):
    return np.concatenate([x, y]), np.stack([x, y], axis=-1), np.vstack((x, y)), np.hstack([x, y])


@case(pairs)
def choosing(x, y):
    return np.where(x > y, x, y), np.where(x > 0, x, 0), np.clip(x, 0, 1), np.minimum(x, y)


@case(pairs)
def products(x, y):
    return np.dot(x, y.T), np.outer(x, y), np.inner(x, y), np.einsum("ij,ij->i", x, y), x[0] @ y[0]


@case(pairs)
def contractions(x, y):
    return np.tensordot(x, y), np.einsum("ij,kj", x, y), np.matmul(x, y.T), np.vdot(x, y)


@case(lambda: [(a(3, 3) + 4 * np.eye(3),), (a(2, 2) + 3 * np.eye(2, dtype=np.float32),)])
def linear_algebra(x):
    return np.linalg.inv(x), np.linalg.solve(x, x[0]), np.linalg.det(x), np.linalg.norm(x, axis=0)


@case(floats)
def fourier(x):
    return np.fft.fft(x), np.fft.rfft(x, axis=0), np.abs(np.fft.fft2(x)), np.fft.ifft(x).real


@case(floats)
def ordering(x):
    return np.sort(x), np.sort(-x, axis=0), np.argsort(-x, kind="stable"), np.argmin(x, axis=1)


@case(lambda: [(a(3), 3), (a(4), 4), (a(5), 5), (a(3, dtype=np.float64), 3)])
def creation(x, n):
    made = np.zeros(n), np.ones((n, 2)), np.full(n, 2.5), np.arange(n), np.eye(2), np.zeros_like(x)
    return *made, x + np.arange(n), np.linspace(0, 1, 3)


@case(singles)
def arranging(x):
    return (
        x.reshape(-1),
        x.T,
        x.ravel(),
        x.flatten(),
        x.swapaxes(0, 1),
        x[None],
        np.squeeze(x[None]),
    )


@case(singles)
def repeating(x):
    return np.tile(x, 2), np.repeat(x, 2, axis=1), np.roll(x, 1), np.roll(x, 1, axis=0), np.triu(x)


@case(singles)
def converting(x):
    return x.astype(np.float64), x.astype(bool), np.array(x), x.copy(), np.asarray(x) is x


@case(lambda: [(a(3), a(3)), (a(3), a(2)), (a(3), a(1))])
def shapes_that_do_not_fit(x, y):
    try:
        return x + y
    except ValueError as error:
        return str(error)


@case(lambda: [(a(2, dtype=np.int64),), (a(2),)])
def cast_that_fails(x):
    try:
        x += 1.5
    except TypeError as error:
        return str(error), x
    return x


@case(lambda: [(a(2, 2),), (np.zeros((2, 2)),), (a(2, 2) + 3,)])
def singular_matrix(x):
    try:
        return np.linalg.inv(x)
    except np.linalg.LinAlgError as error:
        return str(error)


@case(lambda: [(a(3), 2), (a(3), 0), (a(3), 2)])
def errors_that_raise(x, n):
    try:
        with np.errstate(divide="raise"):
            return x / np.float32(n)
    except FloatingPointError as error:
        return str(error)


@case(floats)
def questions(x):
    found = isinstance(x, np.ndarray), type(x) is np.ndarray, hasattr(x, "shape"), callable(x)
    return *found, hasattr(x, "nothing"), getattr(x, "ndim", 0), x is not None, np.isscalar(x)


@case(floats)
def builtins_of_arrays(x):
    found = sum(list(x)), [*map(np.abs, x)], [*enumerate(x[0])], abs(x), pow(x, 2), divmod(x, 2)
    return found, [*reversed(x)], round(float(x[0, 0]), 1)


@case(lambda: [([1, 2, 3], a(3)), ([1, 2], a(2)), ((1.5, 2), a(2))])
def lists_as_arrays(items, x):
    return np.array(items) * x, x + items, np.asarray(items).dtype, np.sum(items)


@case(lambda: [(a(3), {"axis": 0}), (a(3), {"axis": -1}), (a(3), {"keepdims": True})])
def keywords(x, options):
    return np.sum(x, **options), np.add(x, 1, dtype=np.float64), x.max(**options)


@case(floats)
def methods_as_values(x):
    total, add = x.sum, np.add
    return total(), add(x, 1), list(map(np.ndarray.sum, [x, x])), np.ndarray.mean(x)


@case(lambda: [(a(0),), (a(3),), (a(0, 3),)])
def empty_arrays(x):
    return x + 1, x.sum(), x.shape, x.size, len(x), x.reshape(-1)


@case(lambda: [(a(2, 3) + 1j,), (a(2, 3, dtype=np.complex128) * 1j,), (a(2, 3),)])
def complex_numbers(x):
    return x + 1, x * x, np.abs(x), x.real, x.conj(), np.fft.ifft(x)


@case(lambda: [(a(2, 3, dtype=np.float16),), (a(3, 2, dtype=np.float16).T,)])
def half_precision(x):
    return x + 1, x * 2.5, np.sqrt(np.abs(x)), x.sum(), x.max()


@case(
    lambda: [(a(3, dtype=np.longlong),), (a(3, dtype=np.int64),), (a(3, dtype=np.uint32, start=1),)]
)
def other_integer_arrays(x):
    return x + 1, x.dtype.char, x.sum()


@case(lambda: [(a(3),), (a(4),), (np.broadcast_to(a(3), (2, 3)),)])
def broadcast(x):
    y = np.broadcast_to(x, (2, x.shape[-1]))
    return y, y + 1, y.flags.writeable


@case(floats)
def places(x):
    return np.nonzero(x > 0), np.flatnonzero(x), x[np.nonzero(x > 0)]


@case(floats)
def rounded(x):
    return np.round(x, 1), x.round(), np.around(x * 10, -1), np.ptp(x), np.average(x, axis=0)
