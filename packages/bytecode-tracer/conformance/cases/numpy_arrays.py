"""NumPy's arrays in programs: from where they come, beside tensors, guarded, left to NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from conformance.arrays import a, floats
from conformance.declare import case, scenario, t

REQUIRES = ("numpy",)


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


@case(lambda: [(a(3).astype(">f4"),), (a(3),), (a(3).astype(">f4"),)])
def other_byte_order(x):
    return x + 1, x.dtype


@case(lambda: [(np.array(["a", "b"]),), (np.array(["b"]),), (np.array([1, 2]),)])
def texts(x):
    return x[0], x == x[0], len(x)


@case(lambda: [(np.array([1, "x", None], dtype=object),), (np.array([2], dtype=object),), (a(2),)])
def objects(x):
    return x[0], x.shape, x is x


class Named(np.ndarray):
    def __add__(self, other):
        return "added"


@case(lambda: [(a(3).view(Named),), (a(3),), (a(3).view(Named),)])
def subclass(x):
    return x + 1, type(x).__name__


@case(lambda: [(np.zeros(3, dtype=[("x", "f4")]),), (np.ones(2, dtype=[("x", "f4")]),)])
def records(x):
    x["x"] += 1
    return x["x"], len(x)


@case(lambda: [(a(3),), (a(4),), (a(3) * 2,)])
def uncaptured_function_between(x):
    y = np.sin(x)
    z = np.histogram(y, bins=3)[0]
    return z, y * 2


@case(lambda: [(a(3),), (a(4),)])
def as_text(x):
    return f"{x} {x.sum():.2f}", str(x[0]), repr(x.dtype)


@case(lambda: [(a(3), 1), (a(3), 2), (a(3), 1)])
def random_numbers(x, seed):
    generator = np.random.default_rng(seed)
    return x + generator.normal(size=3), generator.integers(10)


@case(lambda: [(a(3),), (a(4),), (a(5),), (a(3),)])
def sizes_that_change(x):
    y = np.concatenate([x, x[:2]]) * 2
    return y.reshape(1, -1), y.sum(), len(y), y.shape


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


@case(lambda: [(a(3), True), (a(3), False), (a(3), True)])
def conditional(x, flag):
    y = x if flag else x * 2
    y = y + (1 if y.ndim == 1 else 2)
    return y, y.shape if flag else None


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


@case(lambda: [(a(3, 2), 1), (a(3, 2), 2), (a(2, 2), 1)])
def iterators_over_breaks(x, count):
    rows = iter(x)
    found = []
    for row in rows:
        found.append(row * count)
        np.histogram(row)
    return found, next(rows, None)
