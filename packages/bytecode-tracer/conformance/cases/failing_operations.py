"""Errors that operations raise: Python's, torch's, and those that only the run of a graph knows."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, t, with_x


@case(with_x(True, False))
def assertions(x, flag):
    assert x.dim() == 2
    assert flag, f"flag is {flag}"
    return x


@case(lambda: [(t(2, 3),), (t(3),), (t(2, 3),)])
def assertion_on_shape(x):
    assert x.dim() == 2, x.shape
    return x + 1


@case(with_x(1, 0))
def division_by_zero(x, n):
    try:
        return x + 1 // n
    except ZeroDivisionError as error:
        return str(error)


@case(with_x({"a": 1}, {"b": 1}))
def missing_key(x, table):
    try:
        return x * table["a"]
    except KeyError as error:
        return error.args, x


@case(with_x([1, 2], [1]))
def index_out_of_range(x, items):
    try:
        return x * items[1]
    except IndexError as error:
        return str(error)


@case(with_x("upper", "missing"))
def missing_attribute(x, name):
    try:
        return getattr("text", name)(), x
    except AttributeError as error:
        return str(error), error.name, error.obj


@case(with_x("1", "a", None))
def conversion(x, text):
    try:
        return x * int(text)
    except (TypeError, ValueError) as error:
        return type(error), str(error)


@case(lambda: [(t(2, 3), t(3)), (t(2, 3), t(2)), (t(2, 3), t(2, 3))])
def torch_error_caught(a, b):
    try:
        return a + b
    except RuntimeError as error:
        return str(error)


@case(lambda: [(t(2, 3), t(3, 2)), (t(2, 3), t(2, 3))])
def torch_error_leaves(a, b):
    a.add_(1)
    return a @ b


@case(with_x(1, "a", None, (1,)))
def unsupported_operand(x, value):
    return x + value


@case(with_x(0, 1), traceback=True)
def index_error_in_torch(x, n):
    y = x * 2
    if n:
        y = y.sum(dim=5)
    return y


@case(with_x(0, 1))
def not_implemented(x, n):
    class Base:
        def run(self):
            raise NotImplementedError(f"{type(self).__name__} {n}")

    try:
        return Base().run()
    except NotImplementedError as error:
        return str(error), x


SEEN: list[str] = []


@case(
    lambda: [(t(3), t(2, 2)), (t(3), torch.eye(2)), (t(3), -torch.eye(2)), (t(3), torch.eye(2))],
)
def error_that_only_the_run_knows(x, matrix):
    SEEN.append("before")
    try:
        found = torch.linalg.cholesky(matrix)
    except RuntimeError as error:
        SEEN.append(type(error).__name__)
        found = matrix * 0
    return x + found.sum()


@case(lambda: [(torch.tensor([0, 1]),), (torch.tensor([0, 9]),), (torch.tensor([1, 1]),)])
def index_that_only_the_run_knows(index):
    SEEN.append("before")
    with torch.no_grad():
        return torch.arange(3.0)[index] * 2


@case(lambda: [(t(3),), (t(3, dtype=torch.int64),), (t(3),)])
def in_place_operation_that_fails(x):
    SEEN.append("before")
    x *= torch.tensor(1.5)
    return x


@case(lambda: [(t(2, 3), t(3)), (t(3), t(2, 3)), (t(3), t(3))])
def in_place_operation_of_another_shape(x, y):
    SEEN.append("before")
    x.bitwise_and_(y) if x.dtype is torch.int64 else x.add_(y)
    return x


@case(lambda: [(t(2),), (t(3),)], traceback=True)
def truth_of_several(x):
    y = x + 1
    if y:
        return y
    return x


@case(lambda: [(t(3), t(3)), (t(1), t(3)), (t(3), t(3))])
def in_place_operation_on_shared_elements(x, y):
    SEEN.append("before")
    wide = torch.broadcast_tensors(x, y)[0]
    wide *= y
    return wide


@case(lambda: [(t(4), 0), (t(4), 1), (t(4), 0)])
def in_place_operation_on_overlapping_operands(x, start):
    SEEN.append("before")
    x[start : start + 3].add_(x[:3])
    return x


def _thrown_away():
    numbers = torch.tensor([1, 0])
    return [
        (t(2), torch.index_select, 0, numbers),
        (t(2), torch.index_select, 0, numbers + 9),
        (t(2, 2), torch.linalg.inv),
        (torch.zeros(2, 2), torch.linalg.inv),
        (numbers, torch.floor_divide, numbers),
        (numbers, torch.pow, -1),
        (numbers, torch.max),
        (numbers[:0], torch.max),
        (numbers, nn.functional.one_hot, 2),
        (numbers, nn.functional.one_hot, 1),
        (t(2, 2, dtype=torch.float64), nn.functional.linear, t(2, 2)),
        (numbers.bool(), torch.abs),
    ]


@case(_thrown_away)
def result_that_is_thrown_away(x, function, *rest):
    SEEN.append("before")
    function(x, *rest)
    SEEN.append("after")
    return x + x
