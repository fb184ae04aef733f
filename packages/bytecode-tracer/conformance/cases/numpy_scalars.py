"""NumPy's scalars: computed, given, changing, and the arrays that they become."""

from __future__ import annotations

import dataclasses

import numpy as np

from conformance.arrays import a, floats, singles
from conformance.declare import case, scenario, t

REQUIRES = ("numpy",)


@case(floats)
def scalars(x):
    s = x[0, 1]
    return s, s + 1, s * x, np.sqrt(abs(s)), type(s), s.dtype, s.ndim, isinstance(s, np.floating)


@case(lambda: [(a(2, 2),), (a(3, 2),)])
def zero_dimensions(x):
    made = np.array(x[0, 0])
    return made, made + 1, made.shape, x.reshape(-1)[:1].reshape(()), made[()]


@case(singles)
def python_numbers(x):
    return x[0, 1].item(), x[0].tolist(), float(x[1, 1])


@case(floats)
def scalar_is_a_copy(x):
    first = x[0, 0]
    x[0, 0] = 50
    return first, x[0, 0]


@dataclasses.dataclass
class Record:
    values: np.ndarray
    scale: object = 1


@scenario(lambda state: _changed_scalars(state))
def scalar_in_attribute():
    state = Record(a(3), np.float32(0.0))

    def program(x):
        return x + state.scale, np.copysign(x, state.scale)

    return program, state


def _changed_scalars(state):
    for scale in (
        np.float32(0),
        np.float32(-0.0),
        np.float64(0),
        np.int8(3),
        np.float32("nan"),
        0.0,
    ):
        state.scale = scale
        yield (a(3),)


@case(
    lambda: [
        (a(3), n) for n in (np.float32(2), np.float64(2), np.int64(2), np.float32(2), np.int8(2))
    ]
)
def scalar_arguments(x, n):
    return x * n, n + 1, n * n, type(n).__name__


@case(lambda: [(a(3),), (a(3) + 9,), (a(4),)])
def branch_on_scalar(x):
    if x.sum() > 3:
        return x * 2
    return x - 1


@case(lambda: [(np.longlong(3), a(2)), (np.longlong(4), a(2))])
def other_integer_classes(n, x):
    return n + 1, x * n, np.arange(3, dtype=np.longlong) + n


@case(lambda: [(np.array(2.0),), (np.array(3.0),), (np.array(2.0, dtype=np.float32),), (a(2),)])
def zero_dimensional_arguments(x):
    return x + 1, x * x, x.shape, x.ndim


@case(lambda: [(np.datetime64("2020", "Y"),), (np.datetime64("2020-01-01", "D"),), (np.str_("a"),)])
def other_scalars(n):
    return n, type(n).__name__, str(n)


@case(lambda: [(a(3), np.float32(1)), (a(3), np.float32(2)), (a(3), np.float32("nan"))])
def nan_scalars(x, n):
    return x + n, n != n


@case(lambda: [(a(3) * n,) for n in range(1, 12)])
def scalars_over_breaks(x):
    mean, top = x.mean(), x.max()
    np.histogram(x)
    return (x - mean) / top, mean, type(top)


@case(lambda: [(t(3), np.float32(n)) for n in (1, 2, 3, 2)])
def scalars_that_change_beside_tensors(x, n):
    return x * float(n), x + n


ONE = np.int64(4)


def one_of(made, other):
    """Two names of one array, which a write in place reaches."""
    made += 1
    other[...] = other * 2
    return made, other, made is other, made.flags.owndata, made.strides


@case(lambda: [(np.int64(2),), (np.float32(2),), (np.bool_(True),), (np.int64(3),)])
def arrays_that_scalars_become(n):
    made = [n.reshape(-1), n.ravel(), n.reshape(1, 1), n.repeat(2), np.atleast_1d(n), n.flatten()]
    return made, [each.flags.owndata for each in made], n.T, n.squeeze(), n.copy(), n[()]


@case(singles)
def arrays_that_scalars_of_the_call_become(x):
    n = x.sum()
    np.histogram(np.zeros(2))
    made = [n.reshape(-1), n.ravel(), np.atleast_1d(n), n[None], n[...]]
    return made, [each.flags.owndata for each in made], [each.strides for each in made]


@case(lambda: [(2,), (3,), (2,)])
def arrays_of_known_scalars_are_written_to(n):
    first, second = ONE.reshape(1), ONE.repeat(n)
    return one_of(first, first), one_of(second, second), list(ONE.flat), np.ndim(ONE)
