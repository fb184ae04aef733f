"""Elements and views of NumPy's arrays, and writes in place that reach what they look at."""

from __future__ import annotations

import numpy as np
import torch

from conformance.arrays import a, floats, pairs, singles
from conformance.declare import case, t

REQUIRES = ("numpy",)


@case(singles)
def basic_indices(x):
    return x[0], x[-1, 1], x[:, 1], x[..., 0], x[1:, ::2], x[None, 0], x[0][1:]


@case(lambda: [(a(4, 3), np.array([1, 0])), (a(4, 3), np.array([3, -1])), (a(2, 3), np.array([0]))])
def index_arrays(x, index):
    return x[index], x[:, index % 3], x[index, 0], np.take(x, index, axis=0)


@case(lambda: [(a(4, 3),), (a(4, 3) + 9,), (a(4, 3) - 9,)])
def masks(x):
    return x[x > 0], x[x[:, 0] > 0], np.where(x > 0, 1, -1)


@case(singles)
def iteration(x):
    return [row.sum() for row in x], list(x[0]), len(x), [*zip(x, x[0], strict=False)]


@case(floats)
def unpacking(x):
    first, second, *rest = x
    return first, second + 1, rest


@case(singles)
def attributes(x):
    return x.shape, x.ndim, x.size, x.dtype, x.itemsize, x.dtype.name, x.dtype == np.float32


@case(floats)
def returned_as_it_is(x):
    return x, x is x, x.T, x[0], x[:, 1:]


@case(floats)
def write_to_element(x):
    x[0] = 9
    x[1, 1] = x[0, 0] + 1
    x[..., 2] = [1, 2] if len(x) == 2 else 3
    return x


@case(floats)
def write_through_view(x):
    row = x[0]
    row += 10
    x.T[1] = 5
    return row, x.sum()


@case(pairs)
def write_in_place(x, y):
    x += 2
    x *= 3
    x -= y.astype(x.dtype)
    return x


@case(floats)
def write_where_mask_says(x):
    x[x < 0] = 0
    return x, x.mean()


@case(pairs)
def write_by_function(x, y):
    made = np.add(x, x, out=x)
    return made is x, np.sum(x, axis=0, out=x[0]), x


@case(floats)
def write_over_itself(x):
    x[:, 1:] = x[:, :-1]
    return x


@case(floats)
def local_is_rebound(x):
    y = x
    y = y + 1
    y += 1
    return x, y


@case(floats)
def fill_and_sort(x):
    x.sort()
    y = x.copy()
    y.fill(3)
    return x, y


@case(lambda: [(a(3), a(3)), (a(4), a(4)), (lambda both: (both, both))(a(3))])
def one_array_twice(x, y):
    x += 1
    return x, y, x is y


@case(lambda: [(lambda b: (b[:3], b[3:]))(a(6)), (lambda b: (b[:4], b[2:]))(a(6)), (a(3), a(3))])
def overlapping_arrays(x, y):
    x += 1
    return x, y * 2


def readonly(*shape):
    made = a(*shape)
    made.flags.writeable = False
    return made


@case(lambda: [(readonly(3),), (a(3),), (readonly(3),)])
def read_only(x):
    try:
        x += 1
    except ValueError as error:
        return str(error), x * 2
    return x * 2


@case(lambda: [(a(4)[::-1],), (a(4),), (a(4)[::-1],)])
def backwards(x):
    return x + 1, x[::-1], x[::-1].sum()


@case(lambda: [(a(3), 3), (a(3), 0), (a(3), 7)])
def index_out_of_range(x, n):
    try:
        return x[n]
    except IndexError as error:
        return str(error)


@case(lambda: [(a(3), t(3, grad=True)), (a(3), t(3)), (a(4), t(4, grad=True))])
def write_beside_gradients(x, w):
    y = (w * torch.from_numpy(x)).sum()
    x += 1
    if w.requires_grad:
        y.backward()
    return y.detach(), w.grad, x


@case(floats)
def half_consumed_iterator(x):
    rows = iter(x)
    first = next(rows)
    return first, list(rows), type(rows).__name__


@case(singles)
def views_without_axes(x):
    whole = np.array(x.sum())
    view = np.atleast_1d(whole)
    view += 1
    return whole, view, view.base is whole
