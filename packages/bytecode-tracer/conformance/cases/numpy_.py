"""NumPy: arrays as arguments, to and from tensors, functions, shared memory."""

from __future__ import annotations

import numpy as np
import torch

from conformance.arrays import a
from conformance.declare import case, t, with_x

REQUIRES = ("numpy",)


@case(lambda: [(a(2, 3),), (a(4, 3),), (a(2, 3, dtype=np.float64),), (a(2, 3),)])
def array_argument(x):
    return np.sin(x) + x * 2


@case(lambda: [(a(2, 3),), (a(3, 3),), (a(2, 3, dtype=np.int64),)])
def array_attributes(x):
    return x.shape, x.ndim, x.size, x.T, x.sum(axis=0), x.dtype.name, x.mean(), x.reshape(-1)


@case(lambda: [(t(2, 3),), (t(4, 3),), (t(2, 3).double(),)])
def to_numpy_and_back(x):
    y = x.numpy() * 2
    return torch.from_numpy(y) + 1


@case(lambda: [(t(3),), (t(2),)])
def shared_memory(x):
    y = x.numpy()
    y[0] = 100
    return x.sum(), y


@case(lambda: [(a(3),), (a(2),)])
def array_from_numpy_shares(x):
    y = torch.from_numpy(x)
    y.add_(1)
    return y, x


@case(lambda: [(t(3), a(3)), (t(2), a(2)), (t(3), a(3, dtype=np.float64))])
def tensor_and_array(x, y):
    return x + torch.as_tensor(y), torch.tensor(y)


@case(with_x(2, 3))
def creation(x, n):
    return np.zeros(n), np.arange(n), np.ones((n, 2)), np.linspace(0, 1, n), np.array([1, n])


@case(lambda: [(a(2, 3), a(3)), (a(3, 3), a(3))])
def functions(x, y):
    return np.dot(x, y), np.where(x > 0, x, 0), np.concatenate([x, x]), np.maximum(x, y), x @ y


@case(with_x(np.float32(2.5), np.float64(2.5), np.int64(3), 3))
def numpy_scalars(x, n):
    return x * n, n + 1, type(n).__name__


@case(lambda: [(a(2, 3), 0), (a(2, 3), 1), (a(2, 3), None)])
def axis_argument(x, axis):
    return x.max(axis=axis), np.sum(x, axis=axis, keepdims=True), np.argmax(x, axis=axis)


@case(lambda: [(a(3),), (a(4),)])
def in_place_on_array(x):
    x += 1
    x[0] = 9
    x *= 2
    return x, x[1:]


@case(lambda: [(a(3),), (a(4),)])
def array_returned_is_argument(x):
    return x, x is x, x.copy()


@case(lambda: [(a(3),), (a(3) + 5,)])
def branch_on_array(x):
    return x * 2 if x.sum() > 0 else x + 1


@case(lambda: [(t(2, 3), np.array([1, 0])), (t(2, 3), np.array([0, 0]))])
def array_as_index(x, index):
    return x[index], x.numpy()[index]


@case(lambda: [(t(2, grad=True),), (t(2),)])
def numpy_of_tensor_with_grad(x):
    try:
        return x.numpy()
    except RuntimeError as error:
        return str(error), x.detach().numpy()


@case(with_x(1, 2))
def random_arrays(x, n):
    return np.random.rand(n), x + torch.from_numpy(np.random.randn(2, 3)).float()


@case(lambda: [(a(2, 2),), (a(3, 3),)])
def linear_algebra(x):
    return np.linalg.norm(x), np.eye(2) @ np.ones((2, 2)), np.allclose(x, x), np.isnan(x).any()
