"""Torch's operators that take functions: scans, branches, maps."""

from __future__ import annotations

import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from conformance.declare import case, t

SCALE = 2.0


def joined(first, second):
    return {"a": first["a"] * second["a"], "b": second["a"] * first["b"] + second["b"]}


@case(lambda: [(t(4, 5),), (t(7, 3),), (t(1, 2),)])
def running_sum(x):
    return associative_scan(lambda a, b: a + b, x * 2, 0, combine_mode="generic")


@case(lambda: [(t(4, 5), 1, True), (t(4, 5), 0, False), (t(3, 6), -1, True)])
def running_maximum(x, dim, reverse):
    return associative_scan(torch.maximum, x, dim, reverse=reverse, combine_mode="generic") + 1


@case(lambda: [(t(5, 3), t(5, 3)), (t(2, 4), t(2, 4))])
def linear_recurrence(gate, x):
    states = associative_scan(joined, {"a": gate.sigmoid(), "b": x}, 0, combine_mode="generic")
    return states["b"] * gate, states


@case(lambda: [(t(4, 5),), (t(6, 2),)])
def of_what_a_global_scales(x):
    global SCALE
    SCALE = SCALE + x.shape[0]
    return associative_scan(lambda a, b: a + b, x * SCALE, 1, combine_mode="generic")


@case(lambda: [(t(4, 5, grad=True),), (t(3, 2, grad=True),)])
def with_gradients(x):
    y = associative_scan(lambda a, b: a * b, x.sigmoid(), 0, combine_mode="generic")
    (found,) = torch.autograd.grad(y.sum(), x)
    return y, found


@case(lambda: [(t(4), 3), (torch.zeros(0, 2), 0), (t(3), 0)])
def what_is_refused(x, dim):
    return associative_scan(lambda a, b: a + b, x, dim, combine_mode="generic")


@case(lambda: [(t(4),), (t(4),)])
def modes_that_a_cpu_lacks(x):
    return associative_scan(lambda a, b: a + b, x, 0)


@case(lambda: [(t(4, 5), True), (t(4, 5), False), (t(2, 2), 3)])
def branches_of_numbers(x, which):
    return torch.cond(which, lambda x: x + 1, lambda x: x.sin(), (x * 2,)) * 3


WEIGHT = torch.eye(3) * 0.5 + 0.1


@case(lambda: [(t(4, 3),), (-t(4, 3),), (t(2, 3),), (t(4, 3, grad=True),)])
def branches_on_values(x):
    y = x * 2
    return torch.cond(x.sum() > 0, lambda: (y @ WEIGHT, y + 1), lambda: (y.sin(), y @ WEIGHT))


@case(lambda: [(t(4, 3),), (-t(4, 3),), (torch.full((2, 3), 100.0),)])
def loops_on_values(x):
    def step(i, x):
        return i + 1, torch.cond(x[0, 0] > 1, lambda x: x * 2, lambda x: x * 3 + 1, (x,))

    return while_loop(lambda i, x: x.abs().sum() < 60, step, (torch.tensor(0), x))


@case(lambda: [(t(4, 3), 0, False), (t(4, 3), 1, True), (t(1, 2), 0, True), (t(0, 2), 0, False)])
def scans(x, dim, reverse):
    def step(carry, row):
        return {"s": carry["s"] * 0.5 + row}, (carry["s"].sin(), {"row": row + 1})

    return scan(step, {"s": torch.zeros_like(x.sum(dim))}, x, dim=dim, reverse=reverse)


@case(lambda: [(t(4, 3), True), (t(4, 3), False), (-t(2, 3), True)])
def maps_of_branches(x, draws):
    def of_row(row):
        row = torch.cond(row.sum() > 0, torch.sin, torch.cos, (row,))
        return row + torch.rand(3) if draws else row

    return map_rows(of_row, x)
