"""NumPy's arrays traced as tensor code: functions, methods, operators, views, writes, guards."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from conformance.declare import case, scenario, t

REQUIRES = ("numpy",)


def a(*shape, dtype=np.float32, start=-1.0):
    return (np.arange(int(np.prod(shape))) / 4 + start).reshape(shape).astype(dtype)


def pairs():
    return [
        (a(2, 3), a(2, 3, start=0.5)),
        (a(4, 3), a(4, 3, start=2)),
        (a(2, 3, dtype=np.float64), a(2, 3)),
        (a(2, 3, dtype=np.int64, start=3), a(2, 3, dtype=np.int32, start=1)),
        (a(2, 3).T, a(2, 3).T.copy()),
        (a(2, 6)[:, ::2], a(2, 3)),
    ]


def singles():
    return [
        *((a(2, 3),), (a(4, 3),), (a(2, 3, dtype=np.float64),), (a(3, 2).T,), (a(2, 6)[:, ::2],)),
        *((a(2, 3, dtype=np.int64, start=2),), (a(2, 3) > 0,), (a(2, 3),)),
    ]


def floats():
    return [(a(2, 3),), (a(4, 3),), (a(2, 3, dtype=np.float64),), (a(3, 2).T,), (a(2, 3),)]


# Functions.


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


# Elements.


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


# Views, and writes in place.


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
def scalar_is_a_copy(x):
    first = x[0, 0]
    x[0, 0] = 50
    return first, x[0, 0]


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


# Tensors.


@case(lambda: [(t(2, 3),), (t(4, 3),), (t(2, 3).double(),), (t(3, 2).T,)])
def tensor_as_array(x):
    y = x.numpy()
    return y, y * 2, np.asarray(x) + 1, y.sum()


@case(lambda: [(t(2, 3),), (t(4, 3),)])
def array_of_computed_tensor(x):
    y = (x * 2).numpy()
    y[0] = 1
    return y, torch.from_numpy(y + 1)


@case(floats)
def array_as_tensor(x):
    y = torch.from_numpy(x)
    y.mul_(2)
    return y, x, torch.tensor(x), torch.as_tensor(x + 1)


@case(lambda: [(t(3, grad=True),), (t(4, grad=True),), (t(3),)])
def gradients_have_no_arrays(x):
    try:
        return x.numpy()
    except RuntimeError as error:
        return str(error), x.detach().numpy()


@case(lambda: [(t(2, 3), a(3)), (t(2, 3), a(3, dtype=np.float64)), (t(4, 3), a(3))])
def both_in_one_graph(x, y):
    return x * torch.from_numpy(y) + 1, x.numpy() * y


@case(lambda: [(t(4, 2), np.array([1, 0])), (t(4, 2), np.array([3, 3]))])
def tensor_indexed_by_array(x, index):
    return x[index] + 1


# Where arrays come from, and guards on them.

TABLE = np.array([1.0, 2.0, 4.0])


@case(lambda: [(a(3),), (a(3, dtype=np.float64),), (a(2, 3),)])
def array_in_global(x):
    return x * TABLE


@scenario(lambda state: _changed_globals(state))
def global_that_changes():
    state = {"table": np.ones(3)}

    def program(x):
        return x + state["table"]

    return program, state


def _changed_globals(state):
    yield (a(3),)
    state["table"] = np.full(3, 2.0)
    yield (a(3),)
    state["table"][0] = 7
    yield (a(3),)
    state["table"] = np.ones(3, dtype=np.float32)
    yield (a(3),)
    state["table"] = 5
    yield (a(3),)


@dataclasses.dataclass
class Record:
    values: np.ndarray
    scale: object = 1


@case(lambda: [(Record(a(3)),), (Record(a(3), 2),), (Record(a(4), np.float32(2)),)])
def array_in_attribute(record):
    record.values = record.values * record.scale
    return record.values.sum()


@case(lambda: [([a(3), a(2)], {"x": a(3)}), ([a(2)], {"x": a(2)}), ([a(3), a(2)], {"x": a(3)})])
def arrays_in_containers(items, table):
    table["y"] = table["x"] + 1
    return [item * 2 for item in items]


@scenario(lambda: [(t(2, 3),), (t(4, 3),)])
def module_with_arrays():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = np.array([1.0, 2.0, 3.0], dtype=np.float32)
            self.factor = np.float32(0.5)

        def forward(self, x):
            return x * torch.from_numpy(self.scale) * float(self.factor)

    return Scaled()


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


# What is not captured runs as it is.


@case(lambda: [(a(3).astype(">f4"),), (a(3),), (a(3).astype(">f4"),)])
def other_byte_order(x):
    return x + 1, x.dtype


@case(lambda: [(np.array(["a", "b"]),), (np.array(["b"]),), (np.array([1, 2]),)])
def texts(x):
    return x[0], x == x[0], len(x)


@case(lambda: [(np.array([1, "x", None], dtype=object),), (np.array([2], dtype=object),), (a(2),)])
def objects(x):
    return x[0], x.shape, x is x


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


class Named(np.ndarray):
    def __add__(self, other):
        return "added"


@case(lambda: [(a(3).view(Named),), (a(3),), (a(3).view(Named),)])
def subclass(x):
    return x + 1, type(x).__name__


@case(lambda: [(a(4)[::-1],), (a(4),), (a(4)[::-1],)])
def backwards(x):
    return x + 1, x[::-1], x[::-1].sum()


@case(lambda: [(np.zeros(3, dtype=[("x", "f4")]),), (np.ones(2, dtype=[("x", "f4")]),)])
def records(x):
    x["x"] += 1
    return x["x"], len(x)


@case(lambda: [(a(3),), (a(4),), (a(3) * 2,)])
def uncaptured_function_between(x):
    y = np.sin(x)
    z = np.histogram(y, bins=3)[0]
    return z, y * 2


@case(lambda: [(a(3),), (a(3) + 9,), (a(4),)])
def branch_on_scalar(x):
    if x.sum() > 3:
        return x * 2
    return x - 1


@case(lambda: [(a(3),), (a(4),)])
def as_text(x):
    return f"{x} {x.sum():.2f}", str(x[0]), repr(x.dtype)


@case(lambda: [(a(3), 3), (a(3), 0), (a(3), 7)])
def index_out_of_range(x, n):
    try:
        return x[n]
    except IndexError as error:
        return str(error)


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


@case(lambda: [(a(3), 1), (a(3), 2), (a(3), 1)])
def random_numbers(x, seed):
    generator = np.random.default_rng(seed)
    return x + generator.normal(size=3), generator.integers(10)


@case(lambda: [(a(3),), (a(4),), (a(5),), (a(3),)])
def sizes_that_change(x):
    y = np.concatenate([x, x[:2]]) * 2
    return y.reshape(1, -1), y.sum(), len(y), y.shape


# What else Python does with arrays.


@case(lambda: [(a(3), t(3, grad=True)), (a(3), t(3)), (a(4), t(4, grad=True))])
def write_beside_gradients(x, w):
    y = (w * torch.from_numpy(x)).sum()
    x += 1
    if w.requires_grad:
        y.backward()
    return y.detach(), w.grad, x


@case(floats)
def questions(x):
    found = isinstance(x, np.ndarray), type(x) is np.ndarray, hasattr(x, "shape"), callable(x)
    return *found, hasattr(x, "nothing"), getattr(x, "ndim", 0), x is not None, np.isscalar(x)


@case(floats)
def builtins_of_arrays(x):
    found = sum(list(x)), [*map(np.abs, x)], [*enumerate(x[0])], abs(x), pow(x, 2), divmod(x, 2)
    return found, [*reversed(x)], round(float(x[0, 0]), 1)


@case(floats)
def printed(x):
    print("shape", x.shape, x.dtype)
    y = x + 1
    print(y[0])
    return y


@case(floats)
def copied(x):
    import copy

    y, z = copy.copy(x), copy.deepcopy(x)
    y[0] = 5
    return x, y, z


@case(floats)
def in_closures_and_generators(x):
    def rows():
        for row in x:
            yield row * 2

    total = np.zeros(3)
    for row in rows():
        total = total + row
    return total, (lambda y: y + x)(1)


@case(floats)
def broken_inside_a_loop(x):
    found = []
    for row in x:
        np.histogram(row)
        found.append(row + 1)
    return found


@case(floats)
def half_consumed_iterator(x):
    rows = iter(x)
    first = next(rows)
    return first, list(rows), type(rows).__name__


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


@case(lambda: [(a(3), True), (a(3), False), (a(3), True)])
def conditional(x, flag):
    y = x if flag else x * 2
    y = y + (1 if y.ndim == 1 else 2)
    return y, y.shape if flag else None


@case(lambda: [(a(0),), (a(3),), (a(0, 3),)])
def empty_arrays(x):
    return x + 1, x.sum(), x.shape, x.size, len(x), x.reshape(-1)


@case(lambda: [(a(2, 3) + 1j,), (a(2, 3, dtype=np.complex128) * 1j,), (a(2, 3),)])
def complex_numbers(x):
    return x + 1, x * x, np.abs(x), x.real, x.conj(), np.fft.ifft(x)


@case(lambda: [(a(2, 3, dtype=np.float16),), (a(3, 2, dtype=np.float16).T,)])
def half_precision(x):
    return x + 1, x * 2.5, np.sqrt(np.abs(x)), x.sum(), x.max()


@case(lambda: [(np.longlong(3), a(2)), (np.longlong(4), a(2))])
def other_integer_classes(n, x):
    return n + 1, x * n, np.arange(3, dtype=np.longlong) + n


@case(
    lambda: [(a(3, dtype=np.longlong),), (a(3, dtype=np.int64),), (a(3, dtype=np.uint32, start=1),)]
)
def other_integer_arrays(x):
    return x + 1, x.dtype.char, x.sum()


@scenario(lambda state: [(a(3),), (a(4),), (a(3),)])
def array_kept_between_calls():
    kept = []

    def program(x):
        y = x * 2
        kept.append(y)
        kept[0][0] += 1
        return len(kept), y

    return program, kept


@case(lambda: [(a(2, 3), (2, 3)), (a(2, 3), (6,)), (a(2, 3), (3, -1)), (a(2, 3), 6)])
def shapes_as_arguments(x, shape):
    return x.reshape(shape), np.zeros(shape if shape != (3, -1) else 1)


@case(lambda: [(a(3), np.dtype("float64")), (a(3), np.float16), (a(3), "int64"), (a(3), float)])
def types_as_arguments(x, dtype):
    return x.astype(dtype), np.zeros(2, dtype=dtype), np.dtype(dtype).itemsize


@case(lambda: [(np.array(2.0),), (np.array(3.0),), (np.array(2.0, dtype=np.float32),), (a(2),)])
def zero_dimensional_arguments(x):
    return x + 1, x * x, x.shape, x.ndim


@case(lambda: [(np.datetime64("2020", "Y"),), (np.datetime64("2020-01-01", "D"),), (np.str_("a"),)])
def other_scalars(n):
    return n, type(n).__name__, str(n)


@case(lambda: [(a(3), np.float32(1)), (a(3), np.float32(2)), (a(3), np.float32("nan"))])
def nan_scalars(x, n):
    return x + n, n != n


@case(floats)
def in_inference_mode(x):
    with torch.inference_mode():
        y = torch.from_numpy(x) * 2
    return y + 0, x * 2


@case(floats)
def without_gradients(x):
    with torch.no_grad():
        y = x * 2
    return y, torch.from_numpy(y) + 1


@case(lambda: [(a(3) * n,) for n in range(1, 12)])
def scalars_over_breaks(x):
    mean, top = x.mean(), x.max()
    np.histogram(x)
    return (x - mean) / top, mean, type(top)


@case(lambda: [(t(3), np.float32(n)) for n in (1, 2, 3, 2)])
def scalars_that_change_beside_tensors(x, n):
    return x * float(n), x + n


@case(lambda: [(a(3, 2), 1), (a(3, 2), 2), (a(2, 2), 1)])
def iterators_over_breaks(x, count):
    rows = iter(x)
    found = []
    for row in rows:
        found.append(row * count)
        np.histogram(row)
    return found, next(rows, None)


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


@case(singles)
def views_without_axes(x):
    whole = np.array(x.sum())
    view = np.atleast_1d(whole)
    view += 1
    return whole, view, view.base is whole
